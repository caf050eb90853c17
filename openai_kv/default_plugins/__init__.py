"""Policies and exporters that come with the server, registered through the same hooks as anyone's."""
