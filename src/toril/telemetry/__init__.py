"""What the library tells about itself. `hooks` is the only part the core imports; the rest are adapters."""
