"""The fact log: frames, segments, the ZeroMQ writer, the client with its spool."""
