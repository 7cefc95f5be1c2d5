"""The style sheet of the report. Arms take the colours of Okabe and Ito, which colour-blind readers can tell apart."""

STYLE = """
:root{--paper:#fdfdfc;--card:#f5f4f1;--ink:#1d1f21;--soft:#5b6066;--rule:#dddbd5;--grid:#e9e7e2;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b0578f;--c4:#b97a00;--c5:#3b95c9;--c6:#4a4f55;
--gain:#00704f;--loss:#b04a00;--none:#3f566b;--stop:#8a5a00}
@media (prefers-color-scheme:dark){:root{--paper:#16181b;--card:#1f2226;--ink:#e9e8e5;--soft:#a2a7ad;--rule:#363a40;
--grid:#292d32;--c0:#56b4e9;--c1:#f08a3c;--c2:#2fc79a;--c3:#d99abf;--c4:#e9b23c;--c5:#8fd0f5;--c6:#c3c7cb;
--gain:#3ecf9f;--loss:#f3945a;--none:#9db6cc;--stop:#e9b23c}}
*{box-sizing:border-box}
html{background:var(--paper);color:var(--ink);-webkit-text-size-adjust:100%}
body{margin:0;font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:40px 24px 72px}
h1{font-size:30px;line-height:1.2;font-weight:650;letter-spacing:-.012em;margin:4px 0 20px;overflow-wrap:anywhere}
h2{font-size:19px;line-height:1.3;font-weight:650;margin:0 0 6px}
p{margin:0}
section{margin-top:52px}
.over{color:var(--soft);font-size:13.5px}
.verdict{border-left:4px solid var(--tone);padding:2px 0 2px 18px}
.verdict.gain{--tone:var(--gain)}.verdict.loss{--tone:var(--loss)}.verdict.none{--tone:var(--none)}
.verdict.stop{--tone:var(--stop)}
.word{color:var(--tone);font-weight:650;font-size:15px}
.sentence{font-size:20px;line-height:1.42;margin:3px 0 9px;overflow-wrap:anywhere;max-width:46em}
.context,.about{color:var(--soft);font-size:14.5px;max-width:60em}
.about{margin-bottom:12px}
.care,.notes{margin-top:20px;font-size:14.5px}
.care h2,.notes h2{font-size:14.5px;margin-bottom:2px}
.care h2{color:var(--stop)}
.care ul,.notes ul{margin:0;padding-left:18px;max-width:56em}
li{overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14.5px;font-variant-numeric:tabular-nums}
th,td{padding:8px 12px 8px 0;text-align:left;vertical-align:middle;border-bottom:1px solid var(--grid)}
thead th{font-weight:500;color:var(--soft);font-size:13px;line-height:1.3;vertical-align:bottom;
border-bottom:1px solid var(--rule)}
tbody th{font-weight:600;overflow-wrap:anywhere;min-width:8.2em}
.who{display:flex;align-items:baseline}
.n{text-align:right;padding:8px 0 8px 16px}
td.n{white-space:nowrap}
.tight thead th.n{overflow-wrap:normal}.tight .n{padding-left:10px}.tight td .quiet{display:block}
.plot{width:270px;padding:0 0 0 22px;line-height:0}
th.plot{line-height:1.3;text-align:center;padding-bottom:8px}
td.plot svg{width:248px}
td:last-child:not(.n),th:last-child:not(.n){padding-left:24px;padding-right:0}
td.say{white-space:nowrap}
thead th.n{overflow-wrap:anywhere;min-width:4.6em}
tfoot td{border:0;padding-top:0;padding-bottom:0}
tr.aside th,tr.aside td{color:var(--soft);font-weight:400;font-size:13px;padding-top:0}
tr.aside:first-child th,tr.aside:first-child td{padding-top:8px}
.quiet{color:var(--soft);font-weight:400}
abbr{text-decoration:none;cursor:help}
abbr[title]{border-bottom:1px dotted var(--soft)}
.pairs th{font-weight:500;color:var(--soft);width:15em;vertical-align:top}
.pairs td{overflow-wrap:anywhere;padding-left:0!important}
.chip{flex:none;width:10px;height:10px;border-radius:50%;background:var(--c);margin-right:9px}
.a0{--c:var(--c0)}.a1{--c:var(--c1)}.a2{--c:var(--c2)}.a3{--c:var(--c3)}.a4{--c:var(--c4)}.a5{--c:var(--c5)}
.a6{--c:var(--c6)}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--soft);
font-variant-numeric:tabular-nums}
.grid{stroke:var(--grid)}.mark,.base{stroke:var(--rule)}.zero{stroke:var(--ink);stroke-width:1.2}
.band{fill:var(--c);opacity:.13}
.seed{fill:none;stroke:var(--c);stroke-width:1;opacity:.38;stroke-linejoin:round}
.only{stroke-width:2;opacity:1}
.mean{fill:none;stroke:var(--c);stroke-width:2.4;stroke-linejoin:round;stroke-linecap:round}
.mean,.only{stroke-dasharray:var(--dash,none)}
.d1{--dash:9 5}.d2{--dash:2 5}.d3{--dash:12 4 2 4}.d4{--dash:5 4}.d5{--dash:14 4}.d6{--dash:6 3 2 3 2 3}
.arm:hover .mean{stroke-width:3.6}.arm:hover .band{opacity:.24}.arm:hover .seed{opacity:.8}
.hit{fill:var(--c);opacity:0}.hit:hover{opacity:.9}
svg .end{fill:var(--c);font-size:13.5px;font-weight:600}
.whisker{stroke:var(--c);stroke-width:2.6;stroke-linecap:round}.dot{fill:var(--c)}
.beyond{fill:var(--c)}svg .cut{font-size:12px;fill:var(--stop)}
.pair{fill:var(--paper);stroke:var(--c);stroke-width:1.4}
.curves input{position:absolute;opacity:0;pointer-events:none}
.curves label{display:inline-block;margin:0 6px 8px 0;padding:4px 12px;border:1px solid var(--rule);border-radius:15px;
font-size:13.5px;line-height:1.45;cursor:pointer;color:var(--soft)}
.curves label:hover{color:var(--ink);border-color:var(--soft)}
.curves input:checked+label{background:var(--ink);border-color:var(--ink);color:var(--paper)}
.curves input:focus-visible+label{outline:2px solid var(--c0);outline-offset:2px}
.panel{display:none;padding-top:10px}
figure{margin:0}
figcaption{font-size:14.5px;font-weight:600;margin-bottom:4px}
.small{display:grid;grid-template-columns:1fr 1fr;gap:26px 20px;margin-top:8px}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 22px;margin:14px 0 18px;padding:0;font-size:13.5px}
.legend li{display:flex;align-items:center}
.key{width:30px;height:10px;margin-right:8px}
details{margin-top:12px;font-size:14.5px}
summary{cursor:pointer;color:var(--soft)}
dl{margin:10px 0 0;max-width:52em}dt{font-weight:600}dd{margin:0 0 8px;color:var(--soft)}
@media (max-width:720px){.large svg{min-width:680px}main{padding:24px 16px 48px}.small{grid-template-columns:1fr}
h1{font-size:25px}.sentence{font-size:18px}}
@media print{html{background:#fff}section{break-inside:avoid;margin-top:32px}.curves label{display:none}}
"""
