package broker

import "testing"

// What a cause blocks, and only that, is not ready then; a reason is never added
// to somebody else's list.
func TestDegrade(t *testing.T) {
	whole := Readiness{Ready: true, Data: true, Control: true}
	for blocks, want := range map[string]Readiness{"": whole, BlocksData: {Control: true}, BlocksControl: {Data: true}} {
		r := whole
		r.Degrade(CauseArchive, "", "first")
		r.Degraded = append(r.Degraded, "room")[:1] // an array with room
		other := r
		r.Degrade(CauseDisk, blocks, "second")
		other.Degrade(CauseDisk, blocks, "other")
		if r.Ready != want.Ready || r.Data != want.Data || r.Control != want.Control {
			t.Errorf("blocks %q: %+v", blocks, r)
		}
		if len(r.Degraded) != 2 || r.Degraded[1] != "second" || r.Causes[1] != (ReadinessCause{CauseDisk, blocks, "second"}) || r.Causes[0].Blocks != "" {
			t.Errorf("blocks %q: %+v", blocks, r)
		}
	}
}
