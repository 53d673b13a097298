"""The page's style sheet: system fonts, and colours for the viewer's light or dark scheme."""

CSS = """
:root { color-scheme: light dark; --bg: #ffffff; --ink: #1d2329; --soft: #59636e;
  --line: #d8dde3; --panel: #f5f7f9; --mark: #fff3c4; --add: #d9f2df; --del: #fbe0dd;
  --link: #0b5fa5; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171b; --ink: #e3e7eb; --soft: #a0abb6;
  --line: #343b43; --panel: #1d2228; --mark: #453a10; --add: #173d24; --del: #4d211e;
  --link: #7cb8ee; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1.25rem 4rem; background: var(--bg);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .4rem; } p { margin: .5rem 0; }
a { color: var(--link); }
h1.study { margin-top: 4rem; padding-top: 1.2rem; border-top: 3px solid var(--line); }
nav { margin: 1rem 0; font-size: .92rem; } nav p { margin: .3rem 0; } nav a { margin-right: .8rem;
  white-space: nowrap; display: inline-block; }
.lead { font-size: 1.15rem; padding: .8rem 1rem; background: var(--panel);
  border-left: 4px solid var(--link); border-radius: 4px; }
.soft, figcaption, caption { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: break-word; min-width: 3.5rem; }
td pre { min-width: 16rem; }
th { font-weight: 600; color: var(--soft); overflow-wrap: normal; vertical-align: bottom; }
tr.marked td { background: var(--mark); }
tr.marked td:first-child { box-shadow: inset 3px 0 0 #D55E00; padding-left: .5rem; }
.figures figure { margin: 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr));
  gap: 1.2rem 2rem; align-items: start; }
figure { margin: .8rem 0; } figure.wide { grid-column: 1 / -1; }
figure svg { max-width: 100%; height: auto; color: inherit; } .span { white-space: nowrap; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 4px; margin: .4rem 0;
  padding: .5rem .7rem; font: .82rem/1.45 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; max-height: 24rem; overflow-y: auto; unicode-bidi: isolate; }
code { font: .85em ui-monospace, monospace; unicode-bidi: isolate; }
ins, del { text-decoration: none; display: block; }
ins { background: var(--add); } del { background: var(--del); }
details { margin: .35rem 0; } summary { cursor: pointer; }
details > *:not(summary) { margin-left: 1rem; }
ul { margin: .4rem 0; padding-left: 1.3rem; }
@media print { details::details-content { content-visibility: visible; }
  pre { max-height: none; } .scroll { overflow-x: visible; } figure, tr { break-inside: avoid; } }
.note { border-left: 4px solid #D55E00; padding-left: .7rem; }
"""
