// The layers of LeNet, forwards and backwards, for a block of pictures: as many as a vector has lanes.
//
// A vector has the same value of each picture. So weights are single numbers that all lanes share, and no lane is idle
// whatever the sizes of a layer. Only the gradients of convolutions are computed by picture: behind the pooling one of
// four outputs has a gradient, another one in each picture, and so they take a quarter of the multiplications.

#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace {

#ifdef __AVX512F__
constexpr int LANES = 16, REGISTERS = 32;
#else
constexpr int LANES = 8, REGISTERS = 16;
#endif
typedef float Vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(LANES * 4)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

constexpr int KERNEL = 5;
constexpr uint8_t CUT = 4;  // by ReLU; 0 to 3 say which of the four was the largest

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector values) { *reinterpret_cast<Vector*>(to) = values; }
constexpr int vectors(int floats) { return (floats + LANES - 1) / LANES; }

// Of blocks of HALF by HALF numbers in two rows of a matrix, those that a transposition brings to the UPPER or the
// lower row.
template <int HALF, bool UPPER, int... LANE>
inline Vector swapped(Vector a, Vector b, std::integer_sequence<int, LANE...>) {
#define LANE_FROM ((LANE & HALF) ? LANES + LANE - (UPPER ? HALF : 0) : LANE + (UPPER ? 0 : HALF))
#ifdef __clang__
    return __builtin_shufflevector(a, b, LANE_FROM...);
#else
    return __builtin_shuffle(a, b, Mask{LANE_FROM...});
#endif
#undef LANE_FROM
}

// A matrix of LANES rows: swap blocks of half its size, then those within them.
template <int HALF = LANES / 2>
inline void transpose(Vector* rows) {
    constexpr std::make_integer_sequence<int, LANES> lanes{};
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i)
        if (!(i & HALF)) {
            const Vector a = rows[i], b = rows[i + HALF];
            rows[i] = swapped<HALF, true>(a, b, lanes);
            rows[i + HALF] = swapped<HALF, false>(a, b, lanes);
        }
    if constexpr (HALF > 1) transpose<HALF / 2>(rows);
}

// Rows of numbers, one of each picture and `stride` apart, become vectors; missing pictures have zeros.
inline void gather(int pictures, const float* from, int64_t stride, int length, Vector* to) {
    for (int begin = 0; begin < length; begin += LANES) {
        const int at = begin + LANES <= length || length < LANES ? begin : length - LANES;  // the last may overlap
        Vector rows[LANES] = {};
        for (int n = 0; n < pictures; ++n) {
            const float* row = from + n * stride + at;
            if (length < LANES)
                std::memcpy(&rows[n], row, length * sizeof(float));
            else
                rows[n] = load(row);
        }
        transpose(rows);
        for (int i = 0; i < LANES && i < length; ++i) to[at + i] = rows[i];
    }
}

// Vectors become rows of numbers, one of each picture. A row has room for whole vectors, and is filled up with zeros.
inline void scatter(const Vector* from, int length, float* to, int64_t stride) {
    for (int at = 0; at < length; at += LANES) {
        Vector rows[LANES] = {};
        for (int i = 0; i < LANES && at + i < length; ++i) rows[i] = from[at + i];
        transpose(rows);
        for (int n = 0; n < LANES; ++n) store(to + n * stride + at, rows[n]);
    }
}

// A convolution of 5 by 5, the largest of each 2 by 2 and ReLU. COLOURS channels of SIDE by SIDE come in, FILTERS of
// POOLED by POOLED go out. The FIRST takes pictures by colour, row and column, and gives them channels last, as the
// second takes them; that gives channels first, as the fully connected layers take them.
template <int SIDE, int COLOURS, int FILTERS, bool FIRST>
struct Convolution {
    static constexpr int OUT = SIDE - KERNEL + 1, POOLED = OUT / 2, POOLS = POOLED * POOLED, LINE = SIDE * COLOURS;
    static constexpr int PICTURE = SIDE * LINE, RESULT = POOLS * FILTERS, TAPS = KERNEL * KERNEL;
    static constexpr int PARTS = vectors(KERNEL * COLOURS), ROW = PARTS * LANES;  // a row of a filter, filled up
    static constexpr int FILTER = KERNEL * ROW, LAID = FILTER + 2 * ROW;          // LAID: between two rows of zeros
    static constexpr int PADDED = PICTURE + ROW;  // a picture, and what may be read behind it
    // How far apart the vectors of neighbours, rows and colours lie that come in.
    static constexpr int NEXT = FIRST ? 1 : COLOURS, BELOW = SIDE * NEXT, COLOUR = FIRST ? SIDE * SIDE : 1;

    static constexpr int result(int f, int at) { return FIRST ? at * FILTERS + f : f * POOLS + at; }

    // GROUP filters, from f on, at one place of the pooling: the sums of its four pixels stay in registers.
    template <int GROUP>
    static inline void pool(const Vector* from, const float* weights, const float* biases, int f, int at,
                            Vector* outputs, Bytes* largest) {
        Vector sums[GROUP][4];
#pragma GCC unroll 8
        for (int g = 0; g < GROUP; ++g)
            for (int i = 0; i < 4; ++i) sums[g][i] = Vector{} + biases[f + g];
        for (int c = 0; c < COLOURS; ++c)
            for (int ky = 0; ky < KERNEL; ++ky) {
                const Vector* pixels = from + c * COLOUR + ky * BELOW;
                const float* own = weights + (f * COLOURS + c) * TAPS + ky * KERNEL;
#pragma GCC unroll 5
                for (int kx = 0; kx < KERNEL; ++kx) {
                    const Vector* at_tap = pixels + kx * NEXT;
                    const Vector four[4] = {at_tap[0], at_tap[NEXT], at_tap[BELOW], at_tap[BELOW + NEXT]};
#pragma GCC unroll 8
                    for (int g = 0; g < GROUP; ++g)
#pragma GCC unroll 4
                        for (int i = 0; i < 4; ++i) sums[g][i] += four[i] * own[g * COLOURS * TAPS + kx];
                }
            }
#pragma GCC unroll 8
        for (int g = 0; g < GROUP; ++g) {
            Vector best = sums[g][0];
            Mask which = {};
            for (int i = 1; i < 4; ++i) {
                const Mask more = (sums[g][i] > best) | (sums[g][i] != sums[g][i]);  // not a number stays to be seen
                best = more ? sums[g][i] : best;
                which = more ? Mask{} + i : which;
            }
            const Mask cut = best <= 0.0f;
            outputs[result(f + g, at)] = cut ? Vector{} : best;
            largest[result(f + g, at)] = __builtin_convertvector(cut ? Mask{} + CUT : which, Bytes);
        }
    }

    static void forward(const Vector* from, const float* weights, const float* biases, Vector* outputs,
                        Bytes* largest) {
        constexpr int GROUP = REGISTERS == 16 ? 2 : FIRST ? 6 : 4;
        static_assert(FILTERS % GROUP == 0);
        for (int at = 0; at < POOLS; ++at) {
            const int y = at / POOLED * 2, x = at % POOLED * 2;
            for (int f = 0; f < FILTERS; f += GROUP)
                pool<GROUP>(from + y * BELOW + x * NEXT, weights, biases, f, at, outputs, largest);
        }
    }

    // What the rows from BEGIN to END of a filter gain from one picture; the sum of the gradients.
    template <int BEGIN, int END>
    static inline float rows(const float* picture, int used, const float* gradient, const int* offset, float* gained) {
        Vector sums[END - BEGIN][PARTS] = {};
        float sum = 0.0f;
        for (int at = 0; at < used; ++at) {
            const float* pixels = picture + offset[at] + BEGIN * LINE;
            sum += gradient[at];
#pragma GCC unroll 5
            for (int ky = 0; ky < END - BEGIN; ++ky)
#pragma GCC unroll 4
                for (int p = 0; p < PARTS; ++p) sums[ky][p] += load(pixels + ky * LINE + p * LANES) * gradient[at];
        }
        for (int ky = BEGIN; ky < END; ++ky)
            for (int p = 0; p < PARTS; ++p) {
                float* to = gained + ky * ROW + p * LANES;
                store(to, load(to) + sums[ky - BEGIN][p]);
            }
        return sum;
    }

    // The gradients of weights, row by row of each filter, and of biases from one picture, which is channels last.
    static void backward_to_weights(const float* picture, const float* gradients, const uint8_t* largest, float* gained,
                                    float* of_biases) {
        constexpr int to_largest[] = {0, COLOURS, LINE, LINE + COLOURS, 0};
        for (int f = 0; f < FILTERS; ++f) {
            float gradient[POOLS + 1];
            int offset[POOLS + 1], used = 0;  // those that ReLU let through
            for (int y = 0, at = 0; y < POOLED; ++y)
                for (int x = 0; x < POOLED; ++x, ++at) {
                    const uint8_t which = largest[result(f, at) * LANES];
                    gradient[used] = gradients[result(f, at)];
                    offset[used] = 2 * y * LINE + 2 * x * COLOURS + to_largest[which];
                    used += which != CUT;
                }
            float* own = gained + f * FILTER;
            if (KERNEL * PARTS <= REGISTERS - 4) {
                of_biases[f] += rows<0, KERNEL>(picture, used, gradient, offset, own);
            } else {
                of_biases[f] += rows<0, 3>(picture, used, gradient, offset, own);
                rows<3, KERNEL>(picture, used, gradient, offset, own);
            }
        }
    }

    // What one place of the pooling gives back to the rows from BEGIN to END of the pixels below it.
    template <int BEGIN, int END>
    static inline void back_rows(int used, const float* gradient, const float* const* filter, float* back) {
        Vector sums[END - BEGIN][PARTS] = {};
        for (int at = 0; at < used; ++at)
#pragma GCC unroll 6
            for (int row = BEGIN; row < END; ++row)
#pragma GCC unroll 4
                for (int p = 0; p < PARTS; ++p)
                    sums[row - BEGIN][p] += load(filter[at] + row * ROW + p * LANES) * gradient[at];
        for (int row = BEGIN; row < END; ++row)
            for (int p = 0; p < PARTS; ++p) {
                float* to = back + row * LINE + p * LANES;
                store(to, load(to) + sums[row - BEGIN][p]);
            }
    }

    // The gradients of one picture, channels last. `laid` has the rows of each filter between two rows of zeros: of the
    // six rows below a place of the pooling, the filter covers the upper or the lower five.
    static void backward_to_picture(const float* gradients, const uint8_t* largest, const float* laid, float* back) {
        std::memset(back, 0, PADDED * sizeof(float));
        for (int at = 0; at < POOLS; ++at) {
            float gradient[2][FILTERS + 1];
            const float* filter[2][FILTERS + 1];
            int used[2] = {0, 0};  // by the column that was the largest
            for (int f = 0; f < FILTERS; ++f) {
                const uint8_t which = largest[result(f, at) * LANES];
                const int column = which & 1;
                gradient[column][used[column]] = gradients[result(f, at)];
                filter[column][used[column]] = laid + f * LAID + (which & 2 ? 0 : ROW);
                used[column] += which != CUT;
            }
            for (int column = 0; column < 2; ++column) {
                float* to = back + at / POOLED * 2 * LINE + (at % POOLED * 2 + column) * COLOURS;
                if (6 * PARTS <= REGISTERS - 4) {
                    back_rows<0, 6>(used[column], gradient[column], filter[column], to);
                } else {
                    back_rows<0, 3>(used[column], gradient[column], filter[column], to);
                    back_rows<3, 6>(used[column], gradient[column], filter[column], to);
                }
            }
        }
    }

    // Where in a filter a weight lies whose channel is c and whose row and column are k.
    static constexpr int place(int c, int k) { return k / KERNEL * ROW + k % KERNEL * COLOURS + c; }

    static void lay(const float* weights, float* laid) {
        for (int f = 0; f < FILTERS; ++f)
            for (int c = 0; c < COLOURS; ++c)
                for (int k = 0; k < TAPS; ++k) laid[f * LAID + ROW + place(c, k)] = *weights++;
    }

    static void collect(const float* gained, float* of_weights) {
        for (int f = 0; f < FILTERS; ++f)
            for (int c = 0; c < COLOURS; ++c)
                for (int k = 0; k < TAPS; ++k) *of_weights++ = gained[f * FILTER + place(c, k)];
    }
};

// sums[i] += the sum over j of factors[i * down + j * along] * terms[j * step].
template <int ROWS>
inline void add_products(int length, const float* factors, int64_t down, int64_t along, const float* terms,
                         int64_t step, Vector* sums) {
    for (int j = 0; j < length; ++j) {
        const Vector term = load(terms + j * step);
#pragma GCC unroll 12
        for (int i = 0; i < ROWS; ++i) sums[i] += term * factors[i * down + j * along];
    }
}

// Fully connected.
template <int IN, int OUT>
struct Linear {
    static constexpr int at_once(int rows) { return rows % 12 == 0 ? 12 : 10; }  // sums that fill 16 registers
    static constexpr int PADDED = vectors(IN) * LANES, WEIGHTS = IN * OUT;

    static void forward(const Vector* from, const float* weights, const float* biases, Vector* outputs) {
        constexpr int ROWS = at_once(OUT);
        static_assert(OUT % ROWS == 0);
        for (int o = 0; o < OUT; o += ROWS) {
            Vector sums[ROWS];
            for (int i = 0; i < ROWS; ++i) sums[i] = Vector{} + biases[o + i];
            add_products<ROWS>(IN, weights + o * IN, IN, 1, reinterpret_cast<const float*>(from), LANES, sums);
            for (int i = 0; i < ROWS; ++i) outputs[o + i] = sums[i];
        }
    }

    static void backward_to_inputs(const Vector* gradients, const float* weights, Vector* of_inputs) {
        constexpr int ROWS = at_once(IN);
        static_assert(IN % ROWS == 0);
        for (int k = 0; k < IN; k += ROWS) {
            Vector sums[ROWS] = {};
            add_products<ROWS>(OUT, weights + k, 1, IN, reinterpret_cast<const float*>(gradients), LANES, sums);
            for (int i = 0; i < ROWS; ++i) of_inputs[k + i] = sums[i];
        }
    }

    // It adds to the gradients of weights. `by_picture` are the inputs, a row of PADDED numbers for each picture.
    static void backward_to_weights(const Vector* gradients, const float* by_picture, float* of_weights) {
        constexpr int ROWS = at_once(OUT);
        const float* factors = reinterpret_cast<const float*>(gradients);
        for (int k = 0; k + LANES <= IN; k += LANES)
            for (int o = 0; o < OUT; o += ROWS) {
                Vector sums[ROWS];
                for (int i = 0; i < ROWS; ++i) sums[i] = load(of_weights + (o + i) * IN + k);
                add_products<ROWS>(LANES, factors + o * LANES, LANES, 1, by_picture + k, PADDED, sums);
                for (int i = 0; i < ROWS; ++i) store(of_weights + (o + i) * IN + k, sums[i]);
            }
        constexpr int REST = IN % LANES;
        for (int o = 0; o < OUT && REST; o += ROWS) {
            Vector sums[ROWS] = {};
            add_products<ROWS>(LANES, factors + o * LANES, LANES, 1, by_picture + IN - REST, PADDED, sums);
            for (int i = 0; i < ROWS; ++i)
                for (int k = 0; k < REST; ++k) of_weights[(o + i + 1) * IN - REST + k] += sums[i][k];
        }
    }
};

}  // namespace
