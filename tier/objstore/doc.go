// Package objstore is the object store as Tidemark needs it: a small [Store]
// interface, one backend per subfolder (file, mem, s3, fault), decorators
// (retry, limit, metrics), and one conformance suite (storetest) that every
// backend passes.
package objstore
