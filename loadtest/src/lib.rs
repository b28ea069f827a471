//! A crowd on loopback: buyers with addresses of their own, and what became of them. Placeholder.
