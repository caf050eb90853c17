"""Where blocks go that leave the KV pool, and come back from: disks, other servers, memory."""
