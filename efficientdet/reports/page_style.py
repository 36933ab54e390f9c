"""CSS that all pages share: colors for light and dark mode, and the layout of a report."""

SERIES = tuple(f"var(--series-{number})" for number in range(8))  # colors of the curves of a chart

# Contrast of text to its ground is at least 4.5 : 1 in both modes (WCAG 2.1, level AA); of curves and outlines 3 : 1.
THEME = """
:root{color-scheme:light dark;--text:#1c2733;--soft:#51606e;--ground:#f4f6f8;--panel:#fff;--line:#d6dde4;
  --accent:#1f6fb4;--on-accent:#fff;--stage:#e9edf1;--bad:#b3401c;--hover:#eef4fa;--warning:#fdf4ee;--code:#1c2733;--on-code:#f7f9fb;
  --good-cell:77,145,205;--bad-cell:222,120,60;
  --series-0:#1f6fb4;--series-1:#d1682a;--series-2:#2c8a4b;--series-3:#8a4fa3;--series-4:#9a6f08;--series-5:#5b6770;
  --series-6:#c2477f;--series-7:#1f8585}
@media (prefers-color-scheme:dark){:root{--text:#e5ebf0;--soft:#a3b2c0;--ground:#141a20;--panel:#1c242c;--line:#3a4652;
  --accent:#5aa7e6;--on-accent:#0d1a26;--stage:#10161b;--bad:#ef8f6c;--hover:#25303b;--warning:#33261e;--code:#0d1217;
  --on-code:#e5ebf0;--good-cell:38,106,170;--bad-cell:168,76,26;
  --series-0:#5aa7e6;--series-1:#ef8f4f;--series-2:#5cc27f;--series-3:#c08ad8;--series-4:#dcb244;--series-5:#a3b2c0;
  --series-6:#ee7fb0;--series-7:#55c9c9}}
*{box-sizing:border-box}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
"""

REPORT = (
    THEME
    + """
body{font:15px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;margin:0}
body{color:var(--text);background:var(--panel)}
main{max-width:1080px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.5em;line-height:1.25;margin:0}h2{font-size:1.15em;margin:2em 0 .6em;padding-bottom:.2em}
h2{border-bottom:1px solid var(--line)}h3{font-size:1em;margin:1.4em 0 .4em}
h1,h2,h3,p,li,figcaption{overflow-wrap:anywhere}p.lead{color:var(--soft);margin:.3em 0 1em;max-width:80ch}
p.big{font-size:1.6em;line-height:1.3;font-weight:600;margin:.4em 0}
.row{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:20px}
.thumbnails{grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr))}
.many{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:14px}
.row+.many,.many+.row,.wide+p.lead,.row+details{margin-top:1.2em}
figure{margin:0;min-width:0}figcaption{font-weight:600}.many figcaption{font-size:.85em}
svg{display:block;width:100%;height:auto;background:var(--ground);border:1px solid var(--line);border-radius:4px}
svg text{font-size:12px;fill:var(--soft)}svg line{stroke:var(--line)}svg text.axis{fill:var(--text)}
.keys{display:flex;flex-wrap:wrap;gap:2px 16px;margin:.4em 0;font-size:.9em}
.swatch{display:inline-block;width:.75em;height:.75em;margin-right:.4em;border-radius:2px}
.wide{overflow-x:auto;max-width:100%}table{border-collapse:collapse}
td,th{padding:3px 16px 3px 0;text-align:left;vertical-align:top}th{font-weight:600;white-space:nowrap}
thead+tbody td:first-child{min-width:6em}thead+tbody td:last-child:not(.n){min-width:14em}
thead th{border-bottom:1px solid var(--line)}tbody tr:hover{background:var(--hover)}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.facts td:first-child{color:var(--soft);white-space:normal}.facts td{overflow-wrap:anywhere;min-width:7em}
.bars{width:100%;max-width:640px}td.bar{min-width:clamp(90px,18vw,240px)}.bars td.bar{width:60%}
.bars td:first-child{overflow-wrap:anywhere;min-width:7.5em}
.bar span{display:inline-block;height:.8em;background:var(--accent)}
td.heat{padding:3px 6px;border:1px solid var(--panel);min-width:1.6em}
.upright{font-size:.85em}.upright td{white-space:nowrap}.upright th{padding:3px 6px;vertical-align:bottom}
.upright th span{writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap}
summary{cursor:pointer;color:var(--accent)}details{margin:.8em 0}
img{display:block;max-width:100%;border:1px solid var(--line)}
details.zoom{margin:0}.zoom summary{list-style:none;cursor:zoom-in}.zoom summary::-webkit-details-marker{display:none}
.zoom+figcaption{font-weight:400;font-size:.9em;color:var(--soft)}
.zoom[open] summary{position:fixed;inset:0;z-index:1;background:#0d1217e6;cursor:zoom-out;display:flex}
.zoom[open] img{width:100%;height:100%;object-fit:contain;border:0}
ul.notices{list-style:none;padding:0}ul.notices li{margin:.5em 0;padding:.5em .8em;background:var(--ground)}
ul.notices li{border-left:4px solid var(--line)}
ul.notices li.warning{border-color:var(--series-1);background:var(--warning)}
pre{background:var(--code);color:var(--on-code);padding:.6em .9em;overflow-x:auto;border-radius:4px}
@media (max-width:600px){main{padding:16px 12px 32px}td,th{padding-right:10px}.bars td.bar{width:45%}}
"""
)
