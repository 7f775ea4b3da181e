"""HTTP: the API on the socket, the pages and metrics, the endpoint for minds."""
