"""Methods against client drift on the shipped digits, compared in three lines each."""

import kedge

for method in ("fedavg", "scaffold", "fedbug + feddyn(alpha=0.1)"):
    result = kedge.run("quickstart", method=method, rounds=10)
    print(f"{result.method:15} {100 * result.accuracy:.1f} %  best in round {result.best[0]}")
