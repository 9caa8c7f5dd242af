"use strict";
(() => {
  const values = new Intl.Collator(undefined, { numeric: true });
  const sortBy = (table, column, down) => {
    const body = table.tBodies[0];
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const compare = (a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === "" || right === "") return (left === "") - (right === "");  // what has no value stays last
      const numbers = [Number(left), Number(right)];
      const order = numbers.some(Number.isNaN) ? values.compare(left, right) : numbers[0] - numbers[1];
      return down ? -order : order;
    };
    body.append(...[...body.rows].sort(compare));
  };

  // Without a script the headings stay text: a button that does nothing is worse than none.
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sortBy(table, column, down);
      });
    });
  }
})();
