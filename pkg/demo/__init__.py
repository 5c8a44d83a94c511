"""`pagetrail demo`: the whole product once, on a real model and real text, with a verdict."""
