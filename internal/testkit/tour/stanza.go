package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash"
)

// parse turns a stanza ("Name: value" lines, continued by lines that begin with
// a space) into a record. ok is false when it names no package.
func parse(stanza []byte) (r record, ok bool) {
	out := bytes.NewBuffer(make([]byte, 0, len(stanza)+len(stanza)/8))
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	text := func(s []byte) {
		_ = enc.Encode(string(s)) // a string into memory
		out.Truncate(out.Len() - 1)
	}
	out.WriteByte('{')
	for len(stanza) > 0 {
		var field []byte
		field, stanza = nextField(stanza)
		name, value, found := bytes.Cut(field, []byte(":"))
		if !found {
			continue
		}
		value = bytes.TrimSpace(value)
		if string(name) == "Package" {
			r.key = bytes.Clone(value)
		}
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		text(name)
		out.WriteByte(':')
		text(value)
	}
	out.WriteByte('}')
	r.value = out.Bytes()
	return r, len(r.key) > 0
}

// nextField cuts the first field off, with its continued lines.
func nextField(stanza []byte) (field, rest []byte) {
	for at := 0; ; {
		end := bytes.IndexByte(stanza[at:], '\n')
		if end < 0 {
			return stanza, nil
		}
		at += end + 1
		if at == len(stanza) || stanza[at] != ' ' && stanza[at] != '\t' {
			return stanza[:at-1], stanza[at:]
		}
	}
}

// digest is a SHA-256 over keys and values, each behind its length, so that no
// byte can wander from one to another.
type digest struct {
	h     hash.Hash
	count int
	bytes int64
}

func (d *digest) add(key, value []byte) {
	if d.h == nil {
		d.h = sha256.New()
	}
	for _, part := range [][]byte{key, value} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		d.h.Write(n[:])
		d.h.Write(part)
	}
	d.count++
	d.bytes += int64(len(key) + len(value))
}

// sum is the digest so far in hexadecimal.
func (d *digest) sum() string {
	if d.h == nil {
		return "nothing"
	}
	return hex.EncodeToString(d.h.Sum(nil))
}
