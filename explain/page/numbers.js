"use strict";

// Arrays as the page carries them, and the arithmetic of attention. No document here.
// Everything is computed in double precision, from the stored fp32 values.

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const DIGIT_OF = new Uint8Array(128);
for (let i = 0; i < DIGITS.length; i++) DIGIT_OF[DIGITS.charCodeAt(i)] = i;

// How far a value computed here may be from the stored one: by 1e-5 of it, or of 1.
const TOLERANCE = 1e-5;

const unpacked = new WeakMap();

// Return {shape, values} of an array that explain/page_data.py packed.
function unpack(packed) {
  if (!unpacked.has(packed)) {
    const values = packed.f4 === undefined ? fromSteps(packed) : fromFloats(packed.f4);
    unpacked.set(packed, { shape: packed.shape, values, step: packed.step || 0 });
  }
  return unpacked.get(packed);
}

function fromFloats(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Float32Array(bytes.buffer);
}

function fromSteps({ codes, digits, low, step }) {
  const values = new Float64Array(codes.length / digits);
  for (let i = 0, at = 0; i < values.length; i++) {
    let whole = 0;
    for (let d = 0; d < digits; d++)
      whole = whole * 64 + DIGIT_OF[codes.charCodeAt(at++)];
    values[i] = low + whole * step;
  }
  return values;
}

// Return row i of a (rows, D) array, or of head h's (H, rows, K).
function rowOf(array, ...place) {
  const width = array.shape[array.shape.length - 1];
  let index = 0;
  place.forEach((i, axis) => {
    index = index * array.shape[axis] + i;
  });
  return array.values.subarray(index * width, (index + 1) * width);
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

// Return x W restricted to columns first to first + count of W (D, D).
function timesMatrix(x, matrix, first, count) {
  const width = matrix.shape[1];
  const result = new Float64Array(count);
  for (let i = 0; i < x.length; i++) {
    const start = i * width + first;
    for (let j = 0; j < count; j++) result[j] += x[i] * matrix.values[start + j];
  }
  return result;
}

// Return the softmax of scores; those not allowed get exactly 0.
function softmax(scores, allowed) {
  let largest = -Infinity;
  scores.forEach((s, i) => {
    if (allowed(i)) largest = Math.max(largest, s);
  });
  const raised = Array.from(scores, (s, i) => (allowed(i) ? Math.exp(s - largest) : 0));
  const total = raised.reduce((a, b) => a + b, 0);
  return raised.map((e) => e / total);
}

function weightedSum(weights, vectors) {
  const result = new Float64Array(vectors[0].length);
  vectors.forEach((vector, s) => {
    for (let i = 0; i < result.length; i++) result[i] += weights[s] * vector[i];
  });
  return result;
}

// Compare computed with stored values. `slack(i)` is what rounding may add to a value.
function compare(computed, stored, slack = () => 0) {
  let difference = 0;
  let agrees = computed.length === stored.length;
  for (let i = 0; i < computed.length; i++) {
    const apart = Math.abs(computed[i] - stored[i]);
    difference = Math.max(difference, apart);
    const allowed = TOLERANCE * Math.max(1, Math.abs(stored[i])) + slack(i);
    if (!(apart <= allowed)) agrees = false;
  }
  return { agrees, difference, count: computed.length };
}

// How far rounding a matrix to its steps can move a sum of products with x, at most.
function roundingSlack(x, matrix) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += Math.abs(x[i]);
  return (sum * matrix.step) / 2;
}

// Recompute every weight of a map from its q and k: how many, how far, and where not.
function checkMap(map, causal) {
  const weights = unpack(map.weights);
  const [H, R, C] = weights.shape;
  const found = { count: 0, difference: 0, wrong: [] };
  if (!map.q) return found;
  const [q, k] = [unpack(map.q), unpack(map.k)];
  const scale = 1 / Math.sqrt(q.shape[2]);
  const slack = weights.step / 2;
  for (let h = 0; h < H; h++) {
    for (let r = 0; r < R; r++) {
      const query = rowOf(q, h, r);
      const scores = Array.from(
        { length: C },
        (_, c) => dot(query, rowOf(k, h, c)) * scale,
      );
      const fresh = softmax(scores, (c) => !causal || c <= r);
      const stored = rowOf(weights, h, r);
      fresh.forEach((w, c) => {
        const apart = Math.abs(w - stored[c]);
        found.count += 1;
        found.difference = Math.max(found.difference, apart);
        if (!(apart <= TOLERANCE + slack)) found.wrong.push([h, r, c]);
      });
    }
  }
  return found;
}
