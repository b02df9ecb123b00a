// Package frame encodes and decodes the bodies of WAL frames: what a commit, a
// group entry, a base and their carried forms look like inside the frames that
// package wal stores without looking at them. docs/formats/shipped-wal.md has the bytes.
//
// Encoders append to the caller's slice and cannot fail. Decoders validate
// every length before they use it, return slices that alias their input, and
// fail with code Corrupt; none of them allocates by a declared size.
package frame
