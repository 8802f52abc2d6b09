// Attention of a few queries on a long cache, float32: every key and value is read once, hidden ones never.
// A head's queries walk over tiles of keys with a running maximum and total; tiles stay in the first cache.
#define LANES 8
#include <algorithm>
#include <thread>
#include <vector>

#include "vector.h"

constexpr int TILE = 32;
constexpr float HIDDEN = -INFINITY;

// The sums over the lanes of 8 vectors, as one vector.
static inline Vec sums(const Vec* a) {
  Vec two[4], four[2];
  for (int i = 0; i < 4; ++i)
    two[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
             __builtin_shufflevector(a[2 * i], a[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  for (int i = 0; i < 2; ++i)
    four[i] = __builtin_shufflevector(two[2 * i], two[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
              __builtin_shufflevector(two[2 * i], two[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  return __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// Asks for the `count` rows from `x` on, 64 bytes at a time.
static void fetch(const float* x, long step, int count, int width) {
  for (int t = 0; t < count; ++t)
    for (int l = 0; l < width; l += 16) __builtin_prefetch(x + t * step + l);
}

// s[t] = scale q . k[t] for the tile's keys; those past `count` are not meant to be read.
static void score(const float* q, const float* k, long step, int count, int d, float scale, float* s) {
  for (int t = 0; t < count; t += 8) {
    const float* row[8];
    for (int j = 0; j < 8; ++j) row[j] = k + std::min(t + j, count - 1) * step;
    Vec a[8] = {};
    for (int l = 0; l < d; l += LANES) {
      Vec x = load(q + l);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) a[j] += x * load(row[j] + l);
    }
    store(s + t, sums(a) * scale);
  }
}

// out = factor out + sum_t w[t] v[t], for PARTS vectors of a value's width
template <int PARTS>
static void pool(const float* w, const float* v, long step, int count, float factor, float* out) {
  Vec a[PARTS];
#pragma GCC unroll 8
  for (int i = 0; i < PARTS; ++i) a[i] = load(out + i * LANES) * factor;
  for (int t = 0; t < count; ++t) {
#pragma GCC unroll 8
    for (int i = 0; i < PARTS; ++i) a[i] += load(v + t * step + i * LANES) * w[t];
  }
#pragma GCC unroll 8
  for (int i = 0; i < PARTS; ++i) store(out + i * LANES, a[i]);
}

static void pool(const float* w, const float* v, long step, int count, int width, float factor, float* out) {
  int l = 0;
  for (; l + 8 * LANES <= width; l += 8 * LANES) pool<8>(w, v + l, step, count, factor, out + l);
  for (; l + 4 * LANES <= width; l += 4 * LANES) pool<4>(w, v + l, step, count, factor, out + l);
  for (; l < width; l += LANES) pool<1>(w, v + l, step, count, factor, out + l);
}

// Running maximum and total of one query's softmax.
struct Running {
  float top = HIDDEN, total = 0;

  // Scores of a tile become weights, those outside [low, high) zero; returns what earlier sums are to be scaled by.
  float take(float* s, int count, long low, long high) {
    for (int t = 0; t < low && t < count; ++t) s[t] = HIDDEN;
    for (int t = std::max(high, 0L); t < (count + 7) / 8 * 8; ++t) s[t] = HIDDEN;
    Vec most = load(s);
    for (int t = 8; t < count; t += 8) { Vec x = load(s + t); most = x > most ? x : most; }
    float high_now = top;
    for (int l = 0; l < LANES; ++l) high_now = std::max(high_now, most[l]);
    float factor = high_now == top ? 1.0f : top == HIDDEN ? 0.0f : std::exp(top - high_now);
    Vec added{};
    for (int t = 0; t < count; t += 8) {
      Vec e = exponential(load(s + t) - high_now);
      added += e;
      store(s + t, e);
    }
    top = high_now;
    total = total * factor + sum(added);
    return factor;
  }
};

// Calls work(begin, end) for equal parts of `units`, each in a thread of its own.
template <class Work>
static void share(long units, long threads, Work work) {
  threads = std::max(1L, std::min(threads, units));
  std::vector<std::thread> others;
  for (long n = 1; n < threads; ++n) others.emplace_back(work, units * n / threads, units * (n + 1) / threads);
  work(0L, units / threads);
  for (std::thread& other : others) other.join();
}

struct Call {
  long batch, heads, value_heads, queries, width, value_width;
  long q_row, q_head, q_step, k_row, k_head, k_step, v_row, v_head, v_step, span_row, threads;
  const float *q, *k, *v;
  float* out;
  const long* spans;
  float scale;

  // One head of one row; out is (rows, queries, heads, value width).
  void head(long row, long h) const {
    const float* query = q + row * q_row + h * q_head;
    const float* key = k + row * k_row + h * k_head;
    const float* value = v + row * v_row + h / (heads / value_heads) * v_head;
    const long* span = spans + row * span_row;
    std::vector<Running> state(queries);
    long first = span[0], last = span[1];
    for (long i = 1; i < queries; ++i) {
      first = std::min(first, span[2 * i]);
      last = std::max(last, span[2 * i + 1]);
    }
    for (long i = 0; i < queries; ++i) std::fill_n(at(row, i, h), value_width, 0.0f);
    float s[TILE];
    for (long t = first; t < last; t += TILE) {
      int count = static_cast<int>(std::min<long>(TILE, last - t));
      int next = static_cast<int>(std::min<long>(TILE, last - t - count));
      fetch(value + t * v_step, v_step, count, value_width);
      for (long i = 0; i < queries; ++i) {
        long low = span[2 * i] - t, high = std::min<long>(span[2 * i + 1] - t, count);
        if (low >= count || high <= 0) continue;
        score(query + i * q_step, key + t * k_step, k_step, count, width, scale, s);
        if (i == 0) fetch(key + (t + count) * k_step, k_step, next, width);
        float factor = state[i].take(s, count, low, high);
        pool(s, value + t * v_step, v_step, count, value_width, factor, at(row, i, h));
      }
    }
    for (long i = 0; i < queries; ++i)
      for (long l = 0; l < value_width; ++l) at(row, i, h)[l] /= state[i].total;
  }

  float* at(long row, long i, long h) const { return out + ((row * queries + i) * heads + h) * value_width; }

  void part(long begin, long end) const {
    for (long unit = begin; unit < end; ++unit) head(unit / heads, unit % heads);
  }
};

// `spans`: the range of keys that each query sees, (rows or 1, queries, 2). `sizes`: the first 17 fields of Call.
extern "C" void decode_attend(const float* q, const float* k, const float* v, float* out, const long* spans,
                              const long* sizes, float scale) {
  Call call;
  std::memcpy(&call, sizes, 17 * sizeof(long));
  call.q = q, call.k = k, call.v = v, call.out = out, call.spans = spans, call.scale = scale;
  share(call.batch * call.heads, call.threads, [&call](long begin, long end) { call.part(begin, end); });
}

// Tokens of a tile that are mixed at a time: all their heads fit into the first cache.
constexpr int FEW = 8;

// out[t] = sum_m alpha[m] x[t][m] for the tile's tokens: a pseudo-head's keys or values, `count` rows of width d.
static void mix(const float* alpha, const float* x, long step, int heads, int count, int d, float* out) {
  for (int t = 0; t < count; t += 2) {
    const float* one = x + t * step;
    const float* two = t + 1 < count ? one + step : one;
    for (int l = 0; l < d; l += 4 * LANES) {
      Vec a[4] = {}, b[4] = {};
      for (int m = 0; m < heads; ++m) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          a[i] += load(one + m * d + l + i * LANES) * alpha[m];
          b[i] += load(two + m * d + l + i * LANES) * alpha[m];
        }
      }
      for (int i = 0; i < 4; ++i) {
        store(out + t * d + l + i * LANES, a[i]);
        if (t + 1 < count) store(out + (t + 1) * d + l + i * LANES, b[i]);
      }
    }
  }
}

// Virtual queries on base keys and values (rows, tokens, heads width), mixed tile by tile in the first caches.
struct Folded {
  long batch, heads, queries, per_token, tokens, width, k_row, k_step, v_row, v_step, span_row, threads;
  const float *q, *k, *v, *alpha_k, *alpha_v;  // q: (rows, per_token, heads, queries, width), alphas (P, heads, heads)
  float* out;                                  // (rows, queries, heads, width)
  const long* spans;
  float scale;

  // Heads `from` to `to` of one row: a tile is mixed for all of them while it is in the cache.
  void some(long row, long from, long to) const {
    const long* span = spans + row * span_row;
    std::vector<Running> state((to - from) * queries);
    std::vector<float> mixed(2 * FEW * width);
    float *keys = mixed.data(), *values = keys + FEW * width, s[TILE];
    long first = span[0], last = span[1];
    for (long i = 1; i < queries; ++i) {
      first = std::min(first, span[2 * i]);
      last = std::max(last, span[2 * i + 1]);
    }
    for (long i = 0; i < queries; ++i) std::fill_n(at(row, i, from), (to - from) * width, 0.0f);
    for (long t = first / per_token; t * per_token < last; t += FEW) {
      int count = static_cast<int>(std::min<long>(FEW, tokens - t));
      for (long index = 0; index < per_token * heads; ++index) {
        long p = index / heads, h = index % heads;
        if (h < from || h >= to) continue;
        mix(alpha_k + index * heads, k + row * k_row + t * k_step, k_step, heads, count, width, keys);
        mix(alpha_v + index * heads, v + row * v_row + t * v_step, v_step, heads, count, width, values);
        for (long i = 0; i < queries; ++i) {
          long low = reach(span[2 * i], p) - t, high = std::min<long>(reach(span[2 * i + 1], p) - t, count);
          if (low >= count || high <= 0 || low >= high) continue;
          score(q + ((row * per_token * heads + index) * queries + i) * width, keys, width, count, width, scale, s);
          float factor = state[(h - from) * queries + i].take(s, count, low, high);
          pool(s, values, width, count, width, factor, at(row, i, h));
        }
      }
    }
    for (long i = 0; i < queries; ++i)
      for (long h = from; h < to; ++h)
        for (long l = 0; l < width; ++l) at(row, i, h)[l] /= state[(h - from) * queries + i].total;
  }

  // The first token whose p-th virtual token is not before `index`.
  long reach(long index, long p) const { return (index - p + per_token - 1) / per_token; }
  float* at(long row, long i, long h) const { return out + ((row * queries + i) * heads + h) * width; }

  void part(long begin, long end) const {
    for (long unit = begin; unit < end;) {
      long row = unit / heads, next = std::min(end, (row + 1) * heads);
      some(row, unit - row * heads, next - row * heads);
      unit = next;
    }
  }
};

// `sizes`: the first 12 fields of Folded; a token's heads lie side by side.
extern "C" void decode_folded(const float* q, const float* k, const float* v, const float* alpha_k,
                              const float* alpha_v, float* out, const long* spans, const long* sizes, float scale) {
  Folded call;
  std::memcpy(&call, sizes, 12 * sizeof(long));
  call.q = q, call.k = k, call.v = v, call.alpha_k = alpha_k, call.alpha_v = alpha_v;
  call.out = out, call.spans = spans, call.scale = scale;
  share(call.batch * call.heads, call.threads, [&call](long begin, long end) { call.part(begin, end); });
}
