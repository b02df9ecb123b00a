package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/tidemark-mq/tidemark/internal/testkit/process"
	"github.com/tidemark-mq/tidemark/internal/testkit/s3server"
)

// archive is where the broker puts what must survive it.
type archive struct {
	name  string
	url   string
	env   []string
	files string // directory in which the objects are files
	close func()
}

// makeDirectory is an archive in a directory.
func makeDirectory(_ context.Context, dir string) (*archive, error) {
	files := filepath.Join(dir, "archive")
	if err := os.Mkdir(files, 0o750); err != nil {
		return nil, err
	}
	return &archive{name: "file://", url: "file://" + files, files: files, close: func() {}}, nil
}

const (
	bucket    = "archive"
	accessKey = "tidemark"
	secretKey = "tidemark-secret"
	startMax  = 30 * time.Second
	portTries = 5
)

// startS3 starts an S3 server with an empty bucket on a free port.
func startS3(ctx context.Context, dir string) (*archive, error) {
	binary, err := s3server.Binary(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the S3 server: %w", err)
	}
	root := filepath.Join(dir, "s3")
	// A top directory is a bucket to the server.
	if err := os.MkdirAll(filepath.Join(root, bucket), 0o750); err != nil {
		return nil, err
	}
	var p *process.Process
	var addr string
	// Another process can take the port between its choice and its use.
	for range portTries {
		if addr, err = freeAddr(); err != nil {
			return nil, err
		}
		p, err = process.Start(process.Options{
			Path: binary, Args: []string{"--port", addr, "--region", "us-east-1", "--health", "/healthz", "--quiet", "--keep-alive", "posix", root},
			Env: []string{"ROOT_ACCESS_KEY=" + accessKey, "ROOT_SECRET_KEY=" + secretKey},
		})
		if err != nil {
			return nil, err
		}
		if err = answers(ctx, p, "http://"+addr+"/healthz"); err == nil {
			break
		}
		p.Kill()
	}
	if err != nil {
		return nil, fmt.Errorf("start the S3 server: %w", err)
	}
	return &archive{
		name:  "s3://",
		url:   fmt.Sprintf("s3://%s/tour?endpoint=http://%s&region=us-east-1&path_style=true", bucket, addr),
		env:   []string{"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey, "AWS_EC2_METADATA_DISABLED=true"},
		files: filepath.Join(root, bucket), close: p.Kill,
	}, nil
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// answers waits until url does, or the process has ended.
func answers(ctx context.Context, p *process.Process, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := c.Do(req)
		if err == nil {
			_ = res.Body.Close() // its status is what counts
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.Done():
			return errors.New("it ended: " + p.Log())
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// size counts the objects and their bytes.
func (a *archive) size() (objects int, bytes int64, err error) {
	err = filepath.WalkDir(a.files, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		objects++
		bytes += info.Size()
		return nil
	})
	return objects, bytes, err
}
