// The page's only way to build elements. Text becomes text nodes, never markup: what workers say of
// themselves cannot become anything else.

const SVG = 'http://www.w3.org/2000/svg';

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export const element = (name, attributes = {}, ...children) =>
  build(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) =>
  build(document.createElementNS(SVG, name), attributes, children);
export const find = (id) => document.getElementById(id);

// Leaves what has not changed alone, so that a reader's selection survives an update.
export function setText(id, text) {
  const node = find(id);
  if (node.textContent !== String(text)) node.textContent = text;
}

// columns: {title, cell(row) -> text or Node}; the first one heads its row. words: is text; pair:
// breaks between its two parts; across: takes a whole line where the page is narrow; optional: is
// left out there.
export function table(caption, columns, rows, rowClass = () => null) {
  const head = columns.map((column) => element(
    'th', { scope: 'col', role: 'columnheader', class: column.words ? 'words' : null }, column.title));
  const body = rows.map((row) => element(
    'tr', { role: 'row', class: rowClass(row) },
    columns.map((column, index) => element(index === 0 ? 'th' : 'td', {
      class: ['words', 'pair', 'across', 'optional'].filter((kind) => column[kind] || (kind === 'words' && index === 0)).join(' ') || null,
      scope: index === 0 ? 'row' : null,
      role: index === 0 ? 'rowheader' : 'cell',
      'data-label': column.title,
    }, column.cell(row)))));
  // The roles are those of the elements; they are lost where the style shows cards instead.
  return element('table', { role: 'table', class: 'cards-when-narrow' },
    element('caption', {}, caption),
    element('thead', { role: 'rowgroup' }, element('tr', { role: 'row' }, head)),
    element('tbody', { role: 'rowgroup' }, body));
}

export function replace(id, ...children) {
  find(id).replaceChildren(...children);
}
