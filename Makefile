# The developer's habits. Every target installs what it lacks (Debian, Ubuntu).
.PHONY: test
test:
	cargo fmt --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace
