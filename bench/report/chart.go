package report

import (
	"fmt"
	"math"
	"strings"
)

type xy struct{ x, y float64 }

// chart is a few lines over the same axes.
type chart struct {
	title    string
	lines    [][]xy
	logY     bool // y values are above 0
	fromZero bool
	xLabel   func(float64) string // nil: the number
}

// Size of a chart and of what surrounds its lines, in pixels.
const (
	width, height                         = 560.0, 260.0
	leftEdge, rightEdge, topEdge, lowEdge = 64.0, 12.0, 26.0, 28.0
)

// Told apart with every kind of colour vision, and by their order.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

// svg draws the chart; "" when no line has two points.
func (c *chart) svg() string {
	box, ok := c.box()
	if !ok {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s"><text x="%g" y="16" class="t">%s</text>`, width, height, c.title, leftEdge, c.title)
	for i := range 5 {
		f := float64(i) / 4
		y := height - lowEdge - f*(height-topEdge-lowEdge)
		fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" class="g"/><text x="%g" y="%.1f" class="y">%s</text>`, leftEdge, width-rightEdge, y, y, leftEdge-6, y+4, Figure(c.unscale(box.lowY+f*(box.highY-box.lowY))))
		x := box.lowX + f*(box.highX-box.lowX)
		label := Figure(x)
		if c.xLabel != nil {
			label = c.xLabel(x)
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" class="x">%s</text>`, leftEdge+f*(width-leftEdge-rightEdge), height-8, label)
	}
	for i, line := range c.lines {
		if len(line) < 2 {
			continue
		}
		b.WriteString(`<polyline points="`)
		for _, p := range line {
			x := leftEdge + (p.x-box.lowX)/(box.highX-box.lowX)*(width-leftEdge-rightEdge)
			y := height - lowEdge - (c.scale(p.y)-box.lowY)/(box.highY-box.lowY)*(height-topEdge-lowEdge)
			fmt.Fprintf(&b, "%.1f,%.1f ", x, y)
		}
		fmt.Fprintf(&b, `" stroke="%s"><title>%s</title></polyline>`, colours[i%len(colours)], runName(i))
	}
	b.WriteString(`</svg>`)
	return b.String()
}

type box struct{ lowX, highX, lowY, highY float64 }

func (c *chart) box() (box, bool) {
	o := box{math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)}
	points := 0
	for _, line := range c.lines {
		points = max(points, len(line))
		for _, p := range line {
			y := c.scale(p.y)
			o = box{min(o.lowX, p.x), max(o.highX, p.x), min(o.lowY, y), max(o.highY, y)}
		}
	}
	if points < 2 {
		return o, false
	}
	if c.fromZero {
		o.lowY = min(o.lowY, 0)
	}
	if o.highX <= o.lowX {
		o.highX = o.lowX + 1
	}
	if o.highY <= o.lowY {
		o.highY = o.lowY + 1
	}
	return o, true
}

func (c *chart) scale(y float64) float64 {
	if c.logY {
		return math.Log10(y)
	}
	return y
}

func (c *chart) unscale(y float64) float64 {
	if c.logY {
		return math.Pow(10, y)
	}
	return y
}
