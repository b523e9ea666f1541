"""Messages of `gangline.v1`: the .proto files and the code that protoc generates from them."""
