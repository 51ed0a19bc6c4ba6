// Does what a user does on the page, and notes what it shows.
const notes = { errors: "" };
window.onerror = (message) => { notes.errors += message; };
HTMLCanvasElement.prototype.setPointerCapture = () => {}; // made-up pointers can't be captured

const range = () => document.getElementById("range").textContent;
const seconds = () => range().match(/[\d.]+/g).map(Number);
const tip = document.getElementById("tip");
const stock = document.querySelector("canvas");
const box = stock.getBoundingClientRect();
const send = (kind, name, part, more = {}) => stock.dispatchEvent(new kind(name, {
  clientX: box.left + 70 + part * (box.width - 80), clientY: box.top + 150, bubbles: true, cancelable: true, ...more,
}));

notes.headings = [...document.querySelectorAll("h2")].map((h) => h.firstChild.textContent.trim()).join(" | ");
notes.legend = [...document.querySelectorAll("#legend > span")].map((item) => item.textContent).join(", ");
notes.all = range();

send(PointerEvent, "pointermove", 0.75);
notes.hover = [tip.querySelector("b").textContent, ...[...tip.querySelectorAll("tr")].map((row) => [...row.cells].map((c) => c.textContent).join(" "))].join(", ");
send(PointerEvent, "pointerleave", 0.75);
notes.left = tip.hidden ? "hidden" : "shown";

const pixels = stock.getContext("2d").getImageData(0, 0, stock.width, stock.height).data;
let gradients = 0;
for (let i = 0; i < pixels.length; i += 4) {
  if (pixels[i] === 204 && pixels[i + 1] === 85 && pixels[i + 2] === 51) gradients++;
}
const areas = (box.width - 80) * (box.height - 50) * (stock.width / box.width) ** 2;
notes.gradients = gradients / areas;

send(WheelEvent, "wheel", 0.5, { deltaY: -100 });
send(WheelEvent, "wheel", 0.5, { deltaY: -100 });
notes.zoomed = seconds();
send(PointerEvent, "pointerdown", 0.2);
send(PointerEvent, "pointermove", 0.9);
send(PointerEvent, "pointerup", 0.9);
notes.moved = seconds();
send(MouseEvent, "dblclick", 0.5);
notes.again = range();
stock.dispatchEvent(new KeyboardEvent("keydown", { key: "+" }));
notes.keyed = seconds();
document.querySelector("h2 button").click();
notes.peak = seconds();

const pre = document.body.appendChild(document.createElement("pre"));
pre.id = "notes";
pre.textContent = JSON.stringify(notes);
