// Vectors of the machine's width in plain C++, and the exponential that softmax kernels need of them.
#pragma once
#include <cmath>
#include <cstring>

// A kernel may define LANES beforehand; wider vectors than the registers would be taken apart into single numbers.
#ifndef LANES
#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#endif
typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int Ints __attribute__((vector_size(4 * LANES)));

static inline Vec load(const float* x) { Vec v; std::memcpy(&v, x, sizeof v); return v; }
static inline void store(float* x, Vec v) { std::memcpy(x, &v, sizeof v); }
static inline Vec all(float x) { return Vec{} + x; }
static inline float sum(Vec v) { float t = 0; for (int l = 0; l < LANES; ++l) t += v[l]; return t; }

// exp(x) for x <= 0 to 2 units in the last place: 2^n times a polynomial in |f| <= ln(2)/2; below -87 it is 0.
static inline Vec exponential(Vec x) {
  Vec low = all(-87.0f);
  Ints alive = x > low;
  x = alive ? x : low;
  Vec n = x * 1.44269504f - 0.5f;
  Ints whole = __builtin_convertvector(n, Ints);  // towards zero: rounds to the nearest for x <= 0
  n = __builtin_convertvector(whole, Vec);
  Vec f = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec p = f * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  Ints bits;
  std::memcpy(&bits, &p, sizeof p);
  bits += whole << 23;
  std::memcpy(&p, &bits, sizeof p);
  return alive ? p : Vec{};
}
