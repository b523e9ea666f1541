"""Messages of `gangline.v1`: the .proto files and what protoc makes of them."""
