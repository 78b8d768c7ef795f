// Decoding a packed path (see report/token_pack.py) and looking up its tokens, nodes and children.

async function unpackColumns(base64) {
  const binary = atob(base64), bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index += 1) bytes[index] = binary.charCodeAt(index);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const headerSize = new DataView(raw.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + headerSize)));
  const columns = {};
  for (const [name, [kind, offset, count]] of Object.entries(header)) columns[name] = decodeColumn(kind, raw, 4 + headerSize + offset, count);
  return columns;
}

// The bytes of a column are stored in planes: all lowest bytes first.
function decodeColumn(kind, raw, start, count) {
  const [steps, zero] = { unit: [1000, 0], signed: [1000, 1000], unit2: [100, 0], signed2: [100, 100] }[kind] || [0, 0];
  if (kind === "u8") return raw.subarray(start, start + count);
  const size = kind === "u32" ? 4 : steps === 100 ? 1 : 2, bytes = new Uint8Array(count * size);
  for (let plane = 0; plane < size; plane += 1) for (let index = 0; index < count; index += 1) bytes[index * size + plane] = raw[start + plane * count + index];
  if (kind === "u32") return new Uint32Array(bytes.buffer);
  const codes = size === 1 ? bytes : new Uint16Array(bytes.buffer), unknownCode = size === 1 ? 255 : 65535;
  if (kind === "u16") return codes;
  const values = new Float32Array(count);
  for (let index = 0; index < count; index += 1) {
    if (kind === "f16") values[index] = halfToNumber(codes[index]);
    else values[index] = codes[index] === unknownCode ? NaN : (codes[index] - zero) / steps;
  }
  return values;
}

function halfToNumber(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

const OWN = 1, SIGNIFICANT = 2; // flags of a child: taken by this path; in S_u
const UNDECIDED = 2; // index of the verdict in `verdicts`

class PathData {
  constructor(columns) {
    const { count, flags, token } = columns, length = count.length;
    Object.assign(this, { columns, length, offsets: new Uint32Array(length + 1), significantBefore: new Uint32Array(flags.length + 1) });
    for (let depth = 0; depth < length; depth += 1) this.offsets[depth + 1] = this.offsets[depth] + count[depth];
    for (let child = 0; child < flags.length; child += 1) this.significantBefore[child + 1] = this.significantBefore[child] + (flags[child] & SIGNIFICANT ? 1 : 0);
    this.ownChild = new Uint32Array(length);
    for (let depth = 0; depth < length; depth += 1) {
      for (let child = this.offsets[depth]; child < this.offsets[depth + 1]; child += 1) if (flags[child] & OWN) this.ownChild[depth] = child;
    }
    this.tokenAt = (depth) => token[this.ownChild[depth]];
    this.depths = columns["node.depth"];
    this.nodeAt = new Int32Array(length).fill(-1);
    this.depths.forEach((depth, node) => { this.nodeAt[depth] = node; });
  }

  // An entry of a column that exists once per teacher or per (teacher, objective) pair; NaN if the column is missing.
  value(name, group, index) {
    const values = this.columns[`${name}.${group}`];
    return values === undefined ? NaN : values[index];
  }

  isUndecided(pair, node) { return this.value("verdict", pair, node) === UNDECIDED; }

  // The children of a position, most probable for the student first.
  children(depth, pair, teacher) {
    const { columns } = this, children = [];
    for (let child = this.offsets[depth]; child < this.offsets[depth + 1]; child += 1) {
      const known = !!(columns.flags[child] & SIGNIFICANT), updateRow = this.significantBefore[child];
      children.push({
        token: columns.token[child], own: !!(columns.flags[child] & OWN), known, p: columns.p[child], t: this.value("t", teacher, child),
        q: columns.q[child], low: columns.q_low[child], high: columns.q_high[child], visits: columns.visits[child],
        ideal: known ? columns.ideal[updateRow] : NaN, update: known ? this.value("update", pair, updateRow) : NaN,
      });
    }
    return children.sort((a, b) => b.p - a.p);
  }
}
