// The style of pages in HTML, light and dark. No torch.
#pragma once

namespace longspan {

inline constexpr const char* kPageStyle = R"css(
:root {
  --paper: #fff; --ink: #1d2228; --faint: #626b75; --line: #d9dee3; --box: #f5f7f9;
  --trained: #c8f0d0; --trained-ink: #0b3d1a; --special: #8250df; --bar: #3f7cc4; --beyond: #d1662f;
  --rest: #e3e7eb; --green: #3d9a55; --warning: #8a4b00; --warning-box: #fff4dd;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181c; --ink: #e3e7eb; --faint: #98a3ae; --line: #333b43; --box: #1c2227;
    --trained: #17492a; --trained-ink: #d5f7de; --special: #c297ff; --bar: #5b9be6; --beyond: #e98850;
    --rest: #333b43; --green: #46a862; --warning: #f0c274; --warning-box: #33280f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
h1 { font-size: 1.5rem; margin: 0 0 .75rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
p { margin: .5rem 0; }
dl { display: flex; flex-wrap: wrap; gap: .4rem 1.6rem; margin: 0; }
dt { color: var(--faint); font-size: .8rem; }
dd { margin: 0; overflow-wrap: anywhere; }
.faint { color: var(--faint); font-weight: normal; overflow-wrap: anywhere; }
.box { background: var(--warning-box); color: var(--warning); border-radius: 6px; padding: .4rem .8rem; }
.warning { color: var(--warning); }
ul { margin: 0; padding-left: 1.1rem; }
li { margin: .25rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--faint); font-weight: normal; font-size: .85rem; vertical-align: bottom; white-space: normal; }
tbody th { font-weight: 600; min-width: 8rem; white-space: normal; overflow-wrap: anywhere; }
.texts td { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 8rem; }
.texts thead th { text-align: left; }
figure { margin: .8rem 0 1.2rem; }
svg { display: block; width: 100%; max-width: 48rem; height: auto; }
svg text { fill: var(--faint); font-size: 11px; }
figcaption { color: var(--faint); font-size: .85rem; overflow-wrap: anywhere; }
.bar { fill: var(--bar); }
.beyond { fill: var(--beyond); }
.axis { stroke: var(--line); }
line.cutoff { stroke: var(--beyond); stroke-dasharray: 4 3; }
svg text.cutoff { fill: var(--beyond); }
.rest { fill: var(--rest); }
.trained { fill: var(--green); }
details { border: 1px solid var(--line); border-radius: 6px; margin: .6rem 0; padding: 0 .8rem; }
details[open] { padding-bottom: .6rem; }
summary { cursor: pointer; padding: .5rem 0; font-weight: 600; }
.tokens {
  background: var(--box); border-radius: 6px; margin: .3rem 0 .8rem; padding: .6rem .8rem; max-height: 32rem;
  overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.6 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
}
mark { background: var(--trained); color: var(--trained-ink); border-radius: 2px; }
.tokens i, .tokens b { font-style: normal; font-weight: normal; border-radius: 2px; }
.tokens b, .legend b { color: var(--special); font-weight: normal; }
.tokens i:hover, .tokens b:hover { outline: 1px solid var(--ink); }
.tokens .n::before { content: "\21b5"; opacity: .45; }
.gap { color: var(--faint); font-style: italic; }
.legend mark, .legend b { padding: .05rem .4rem; margin-right: .6rem; }
)css";

}  // namespace longspan
