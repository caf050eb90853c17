"""Parts of a model in fewer and larger operators, put in where they fit."""
