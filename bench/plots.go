package main

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

var (
	oursColor = color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff}
	peerColor = color.RGBA{R: 0xb8, G: 0xbe, B: 0xc6, A: 0xff}
)

// plots draws the section's bars and curves.
func (f *figures) plots(dir string) error {
	var errs []error
	for _, c := range f.Columns {
		if c.Key == f.Bars && c.Key != "" {
			errs = append(errs, f.plotBars(filepath.Join(dir, f.ID+".svg"), c))
		}
	}
	if f.Curves != nil && len(f.Curves.Lines) > 0 {
		errs = append(errs, f.plotCurves(filepath.Join(dir, f.ID+"-curves.svg")))
	}
	return errors.Join(errs...)
}

// bars are an arm's figure each, with the smallest and the largest.
type bars []bar

type bar struct {
	name   string
	spread spread
}

// Len, XY and XError implement what plotter.NewXErrorBars wants.
func (b bars) Len() int                { return len(b) }
func (b bars) XY(i int) (x, y float64) { return b[i].spread.Median, float64(i) }
func (b bars) XError(i int) (low, high float64) {
	return b[i].spread.Median - b[i].spread.Min, b[i].spread.Max - b[i].spread.Median
}

// shown are the arms that belong into a plot, the first on top: one whose output
// is wrong has no speed.
func (f *figures) shown(key string) (all bars) {
	for i := len(f.Arms) - 1; i >= 0; i-- {
		a := f.Arms[i]
		if s, ok := a.Figures[key]; ok && a.Error == "" && (a.Verdict == nil || a.Verdict.ok()) {
			all = append(all, bar{a.Name, s})
		}
	}
	return all
}

func (f *figures) plotBars(file string, c column) error {
	all := f.shown(c.Key)
	if len(all) == 0 {
		return nil
	}
	p := plot.New()
	p.Title.Text = f.Title + ": " + c.Title
	p.Title.Padding = vg.Points(6)
	p.X.Min = 0
	ours, peers := make(plotter.Values, len(all)), make(plotter.Values, len(all))
	names := make([]string, len(all))
	for i, b := range all {
		names[i] = b.name
		if f.Ours || strings.Contains(b.name, "fenceline") { // ours have a colour of their own
			ours[i] = b.spread.Median
		} else {
			peers[i] = b.spread.Median
		}
	}
	p.Add(plotter.NewGrid())
	for _, part := range []struct {
		values plotter.Values
		color  color.Color
	}{{ours, oursColor}, {peers, peerColor}} {
		chart, err := plotter.NewBarChart(part.values, vg.Points(12))
		if err != nil {
			return err
		}
		chart.Horizontal, chart.Color, chart.LineStyle.Width = true, part.color, 0
		p.Add(chart)
	}
	whiskers, err := plotter.NewXErrorBars(all)
	if err != nil {
		return err
	}
	p.Add(whiskers)
	p.NominalY(names...)
	p.X.Max *= 1.05 // the longest whisker's end is seen
	return p.Save(9*vg.Inch, vg.Length(len(names)+3)*0.3*vg.Inch, file)
}

func (f *figures) plotCurves(file string) error {
	p := plot.New()
	p.Title.Text = f.Title
	p.Title.Padding = vg.Points(6)
	p.X.Label.Text, p.Y.Label.Text = f.Curves.X, f.Curves.Y
	p.Add(plotter.NewGrid())
	for i, l := range f.Curves.Lines {
		xys := make(plotter.XYs, len(l.Points))
		for n, pt := range l.Points {
			xys[n] = plotter.XY{X: pt.X, Y: pt.Y}
			if f.Curves.Logarithmic {
				xys[n].Y = math.Log10(max(pt.Y, 1e-3))
			}
			if f.Curves.Percentiles {
				xys[n].X = nines(pt.X)
			}
		}
		drawn, err := plotter.NewLine(xys)
		if err != nil {
			return err
		}
		drawn.Width, drawn.Color, drawn.Dashes = vg.Points(2), plotutil.Color(i), plotutil.Dashes(i)
		if strings.Contains(l.Name, "fenceline") {
			drawn.Color, drawn.Dashes = oursColor, nil
		}
		p.Add(drawn)
		p.Legend.Add(l.Name, drawn)
	}
	p.Legend.Top, p.Legend.Left = true, true
	// The legend needs room above the lines.
	p.Y.Max += (p.Y.Max - p.Y.Min) * 0.08 * float64(len(f.Curves.Lines))
	if f.Curves.Logarithmic {
		p.Y.Tick.Marker = powersOfTen{}
	}
	if f.Curves.Percentiles {
		p.X.Tick.Marker = percentTicks{}
	}
	return p.Save(9*vg.Inch, 4.5*vg.Inch, file)
}

// nines spreads the rare cases out: 90 %, 99 % and 99.9 % are equally far apart.
func nines(percent float64) float64 { return -math.Log10(1 - percent/100) }

// percentTicks marks an axis of nines.
type percentTicks struct{}

// Ticks implements plot.Ticker.
func (percentTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	for _, p := range []float64{0, 50, 90, 99, 99.9} {
		if x := nines(p); x >= low-0.01 && x <= high+0.01 {
			ticks = append(ticks, plot.Tick{Value: x, Label: fmt.Sprintf("%g %%", p)})
		}
	}
	return ticks
}

// powersOfTen marks an axis of logarithms.
type powersOfTen struct{}

// Ticks implements plot.Ticker.
func (powersOfTen) Ticks(low, high float64) (ticks []plot.Tick) {
	for e := math.Floor(low); e <= math.Ceil(high); e++ {
		ticks = append(ticks, plot.Tick{Value: e, Label: fmt.Sprintf("%g", math.Pow(10, e))})
	}
	return ticks
}
