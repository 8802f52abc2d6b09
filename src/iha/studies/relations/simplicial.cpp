// 2-simplicial attention of one (example, head) after the other, float32, head width 16: nothing of size N^3 is stored.
// Per query i the N x N scores are three small products with an inner dimension of 16, kept in the first two caches.
#include <vector>

#include "vector.h"

constexpr int D = 16, PARTS = D / LANES;

// The 16 numbers of a head at one cell.
struct Row {
  Vec part[PARTS];
};

// Part by part: a copy of the whole would go through memory.
static Row load_row(const float* x) { Row r; for (int i = 0; i < PARTS; ++i) r.part[i] = load(x + i * LANES); return r; }
static void store(float* x, const Row& r) { for (int i = 0; i < PARTS; ++i) store(x + i * LANES, r.part[i]); }
static Row operator*(Row a, const Row& b) { for (int i = 0; i < PARTS; ++i) a.part[i] *= b.part[i]; return a; }
static Row operator*(Row a, float b) { for (int i = 0; i < PARTS; ++i) a.part[i] *= b; return a; }
static Row operator+(Row a, const Row& b) { for (int i = 0; i < PARTS; ++i) a.part[i] += b.part[i]; return a; }
static float sum(const Row& r) { float t = 0; for (int i = 0; i < PARTS; ++i) t += sum(r.part[i]); return t; }
static void add_to(float* x, const Row& r) { store(x, load_row(x) + r); }

// s (n x wide) = a (n x 16) times t (16 x wide), four rows and two vectors at a time
static void outer(const float* a, const float* t, float* s, int n, int wide) {
  for (int j = 0; j < n; j += 4) {
    const float* r[4];
    for (int m = 0; m < 4; ++m) r[m] = a + (j + m < n ? j + m : n - 1) * D;
    for (int k = 0; k < wide; k += 2 * LANES) {
      Vec c[4][2] = {};
      for (int l = 0; l < D; ++l) {
        Vec x = load(t + l * wide + k), y = load(t + l * wide + k + LANES);
#pragma GCC unroll 4
        for (int m = 0; m < 4; ++m) {
          c[m][0] += x * r[m][l];
          c[m][1] += y * r[m][l];
        }
      }
#pragma GCC unroll 4
      for (int m = 0; m < 4; ++m) {
        if (j + m >= n) break;
        store(s + (j + m) * wide + k, c[m][0]);
        store(s + (j + m) * wide + k + LANES, c[m][1]);
      }
    }
  }
}

// a (n x 16) = p (n x n, rows `row` apart, columns `column` apart) times v (n x 16), added to `a` if `add`
static void pool(const float* p, int row, int column, const float* v, float* a, int n, bool add) {
  for (int j = 0; j < n; j += 4) {
    const float* r[4];
    for (int m = 0; m < 4; ++m) r[m] = p + (j + m < n ? j + m : n - 1) * row;
    Row c[4] = {};
    for (int k = 0; k < n; ++k) {
      Row x = load_row(v + k * D);
#pragma GCC unroll 4
      for (int m = 0; m < 4; ++m) c[m] = c[m] + x * r[m][k * column];
    }
#pragma GCC unroll 4
    for (int m = 0; m < 4; ++m) {
      if (j + m >= n) break;
      float* to = a + (j + m) * D;
      store(to, add ? load_row(to) + c[m] : c[m]);
    }
  }
}

static void transpose(const float* x, float* t, int n, int wide) {
  std::memset(t, 0, sizeof(float) * D * wide);
  for (int k = 0; k < n; ++k)
    for (int l = 0; l < D; ++l) t[l * wide + k] = x[k * D + l];
}

static void rows_times(const float* x, const Row& factor, float* y, int n) {
  for (int j = 0; j < n; ++j) store(y + j * D, load_row(x + j * D) * factor);
}

// Padding columns of the score matrices become weight 0.
static void clear_padding(float* s, int n, int wide) {
  for (int j = 0; j < n; ++j)
    for (int k = n; k < wide; ++k) s[j * wide + k] = 0;
}

struct Room {
  int n, wide;
  std::vector<float> k2t, v2t, weights, change, pairs, outers, pooled;
  explicit Room(int n)
      : n(n), wide((n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES)), k2t(D * wide), v2t(D * wide), weights(n * wide), change(n * wide),
        pairs(n * D), outers(n * D), pooled(n * D) {}
};

extern "C" void simplicial_forward(const float* q, const float* k1, const float* k2, const float* v1, const float* v2,
                                   float* out, float* lse, long heads, long n, float scale) {
  Room room(static_cast<int>(n));
  for (long h = 0; h < heads; ++h, q += n * D, k1 += n * D, k2 += n * D, v1 += n * D, v2 += n * D, out += n * D,
            lse += n) {
    transpose(k2, room.k2t.data(), n, room.wide);
    for (int i = 0; i < n; ++i) {
      float* s = room.weights.data();
      rows_times(k1, load_row(q + i * D) * scale, room.pairs.data(), n);
      outer(room.pairs.data(), room.k2t.data(), s, n, room.wide);
      Vec high = all(-INFINITY);
      for (int j = 0; j < n; ++j) {
        for (int k = n; k < room.wide; ++k) s[j * room.wide + k] = -INFINITY;
        for (int k = 0; k < room.wide; k += LANES) {
          Vec x = load(s + j * room.wide + k);
          high = x > high ? x : high;
        }
      }
      float top = high[0];
      for (int l = 1; l < LANES; ++l) top = high[l] > top ? high[l] : top;
      Vec totals{};
      for (int at = 0; at < n * room.wide; at += LANES) {
        Vec e = exponential(load(s + at) - top);
        totals += e;
        store(s + at, e);
      }
      float total = sum(totals);
      pool(s, room.wide, 1, v2, room.pooled.data(), n, false);
      Row result{};
      for (int j = 0; j < n; ++j) result = result + load_row(v1 + j * D) * load_row(room.pooled.data() + j * D);
      store(out + i * D, result * (1 / total));
      lse[i] = top + std::log(total);
    }
  }
}

// Gradients are added to dk1, dk2, dv1, dv2, which start at zero, and written to dq.
extern "C" void simplicial_backward(const float* grad, const float* q, const float* k1, const float* k2,
                                    const float* v1, const float* v2, const float* out, const float* lse, float* dq,
                                    float* dk1, float* dk2, float* dv1, float* dv2, long heads, long n, float scale) {
  Room room(static_cast<int>(n));
  long step = n * D;
  for (long h = 0; h < heads; ++h, grad += step, q += step, k1 += step, k2 += step, v1 += step, v2 += step,
            out += step, lse += n, dq += step, dk1 += step, dk2 += step, dv1 += step, dv2 += step) {
    transpose(k2, room.k2t.data(), n, room.wide);
    transpose(v2, room.v2t.data(), n, room.wide);
    for (int i = 0; i < n; ++i) {
      float *s = room.weights.data(), *c = room.change.data(), *pooled = room.pooled.data();
      Row g = load_row(grad + i * D), query = load_row(q + i * D) * scale;
      float row = sum(g * load_row(out + i * D));
      rows_times(k1, query, room.pairs.data(), n);
      rows_times(v1, g, room.outers.data(), n);
      outer(room.pairs.data(), room.k2t.data(), s, n, room.wide);
      outer(room.outers.data(), room.v2t.data(), c, n, room.wide);
      for (int at = 0; at < n * room.wide; at += LANES) {
        Vec p = exponential(load(s + at) - lse[i]);
        store(s + at, p);
        store(c + at, p * (load(c + at) - row));
      }
      clear_padding(s, n, room.wide);
      clear_padding(c, n, room.wide);
      pool(s, room.wide, 1, v2, pooled, n, false);
      for (int j = 0; j < n; ++j) add_to(dv1 + j * D, g * load_row(pooled + j * D));
      pool(s, 1, room.wide, room.outers.data(), dv2, n, true);
      pool(c, room.wide, 1, k2, pooled, n, false);
      Row change{};
      for (int j = 0; j < n; ++j) {
        Row x = load_row(pooled + j * D);
        change = change + x * load_row(k1 + j * D);
        add_to(dk1 + j * D, query * x);
      }
      store(dq + i * D, change * scale);
      pool(c, 1, room.wide, room.pairs.data(), dk2, n, true);
    }
  }
}
