"""The compiled parts: what must not hold the GIL, or must not allocate. Import the module you need."""
