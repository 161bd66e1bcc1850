#pragma once

namespace cleave {

/// The CSS of a report: light or dark like the reader's system, one column on a phone.
inline constexpr const char* kReportStyle = R"css(
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --soft: #667080; --grid: #e6e9ee; --code: #f1f3f6;
  --c1: #2563c9; --c2: #d9701f; --c3: #17917a; --c4: #8e4fc2; --c5: #c43d5f; --c6: #7c8696; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171c; --card: #1c2027; --ink: #e7eaef; --soft: #97a1b0; --grid: #2d333d; --code: #252a33;
  --c1: #6aa3ff; --c2: #f09a52; --c3: #3fc2a6; --c4: #bd8bea; --c5: #f0768f; --c6: #8d97a8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0; }
h2 { font-size: 15px; margin: 0 0 10px; }
.outcome { color: var(--soft); margin: 4px 0 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(116px, 1fr)); gap: 12px; }
.tiles div, section, figure { background: var(--card); border: 1px solid var(--grid); border-radius: 10px; }
.tiles div { padding: 12px 14px; }
.tiles b { display: block; white-space: nowrap; font-size: 22px; font-weight: 650; line-height: 1.3; }
.tiles span { color: var(--soft); font-size: 13px; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 14px;
  margin-top: 14px; align-items: start; }
section { padding: 14px 16px; margin-top: 14px; overflow-x: auto; }
.grid section { margin: 0; }
figure { margin: 0; padding: 12px 14px 8px; }
figcaption { display: flex; justify-content: space-between; flex-wrap: wrap; font-weight: 650; margin-bottom: 6px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.axes line { stroke: var(--grid); stroke-width: 1; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.faint { stroke-width: 1; opacity: .35; }
.dot { stroke: var(--card); stroke-width: 1.5; }
.hover { opacity: 0; }
.hover:hover { opacity: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; color: var(--soft); font-size: 13px; font-weight: 400; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 8px 12px; align-items: center;
  margin-bottom: 10px; font-size: 13px; }
.bars b { font-weight: 500; }
.bars span { color: var(--soft); font-variant-numeric: tabular-nums; }
.bars div { display: flex; gap: 2px; height: 18px; }
.bars div i { border-radius: 3px; min-width: 1px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 4px 16px 4px 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
.facts td:first-child { color: var(--soft); white-space: nowrap; width: 1%; }
pre { background: var(--code); border-radius: 8px; padding: 12px 14px; margin: 0; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre b { color: var(--soft); font-weight: 400; }
footer { color: var(--soft); font-size: 13px; margin-top: 20px; }
)css";

}  // namespace cleave
