// Tables sort by the heading that is chosen; without this script they stand as they were written.
(function () {
  "use strict";
  function value(body, column) {
    var cell = body.rows[0].cells[column];
    if (!cell) return null;
    var number = cell.getAttribute("data-number");
    if (number !== null) return Number(number);
    return cell.textContent.trim();
  }
  function compare(a, b, column, sign) {
    var x = value(a, column), y = value(b, column);
    var known = function (v) { return v !== null && v !== "" && v !== "–"; };
    if (known(x) !== known(y)) return known(x) ? -1 : 1; // what is not known is last, either way
    if (!known(x)) return 0;
    if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
    return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    var heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      while (head.firstChild) button.appendChild(head.firstChild);
      head.appendChild(button);
      button.addEventListener("click", function () {
        var sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        Array.from(table.tBodies)
          .sort(function (a, b) { return compare(a, b, column, sign); })
          .forEach(function (body) { table.appendChild(body); });
      });
    });
  });
  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape" && document.querySelector("figure.picture:target")) location.hash = "#shown";
  });
})();
