//! The guest: first process of a VM that isthmus boots, and the agent inside any VM.
