// Package sealed makes sealed segments for tests: the file, its bytes, and what a
// chain says of its object. It is for tests only.
package sealed
