package child

import (
	"io"
	"runtime"
)

// run starts the process, says how its first line was, drops what follows and
// waits for its end.
func (c *Child) run(out io.Reader, started, ready chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(c.ended)
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	c.lines.Go(func() {
		ready <- readLine(out, &c.Ready)
		_, _ = io.Copy(io.Discard, out) // nothing else is expected
	})
	c.lines.Wait()
	c.err = c.cmd.Wait()
}
