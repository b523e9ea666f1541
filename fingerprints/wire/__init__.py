"""How readings travel: the .proto files and what protoc makes of them."""
