"""Domain values to protobuf messages and back; nothing else touches the messages.

One module per .proto file. `x_to_wire` and `x_from_wire` stand in pairs; `from_wire` raises InvalidRequest naming the field.
"""
