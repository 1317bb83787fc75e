"""Between numpy on the host and tensors on the device: devices, types, copies, and features as bytes.

It imports no other room.
Others use `transfer`, copies; `feature_codec`, features as bytes.
"""
