// A convolution of 5 by 5, the largest of each 2 by 2 and ReLU as one operation, forwards and backwards, on one core.
//
// Inside, pictures lie channels last; the first layer of a network takes them by colour, as data sets have them. Behind
// the pooling only one of four outputs has a gradient, so backwards takes a quarter of the multiplications. The channels
// are few: a picture and all weights stay in the first cache.

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

typedef float Vector __attribute__((vector_size(32), aligned(4)));
typedef int32_t Mask __attribute__((vector_size(32)));
constexpr int LANES = 8, KERNEL = 5;
constexpr uint8_t CUT = 4;  // by ReLU; 0 to 3 say which of the four was the largest

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector values) { *reinterpret_cast<Vector*>(to) = values; }
constexpr int vectors(int floats) { return (floats + LANES - 1) / LANES; }

// COLOURS channels of SIDE by SIDE pixels in, FILTERS channels of POOLED by POOLED out. FIRST of its network: pictures
// come by colour, and need no gradient.
template <int SIDE, int COLOURS, int FILTERS, bool FIRST>
struct Layer {
    static constexpr int OUT = SIDE - KERNEL + 1, POOLED = OUT / 2, LINE = SIDE * COLOURS;
    static constexpr int ROW = KERNEL * COLOURS, PARTS = vectors(ROW), WIDE = vectors(FILTERS);
    static constexpr int AT_ONCE = WIDE == 1 ? 7 : 5;  // pixels whose sums fill the registers
    static constexpr int PICTURE = SIDE * LINE, RESULT = POOLED * POOLED * FILTERS;
    static_assert(OUT % AT_ONCE == 0 && OUT % 2 == 0);

    // A picture, channels last, with room for a vector behind it.
    static void take(const float* from, float* picture) {
        if (FIRST) {
            for (int at = 0; at < SIDE * SIDE; ++at)
                for (int c = 0; c < COLOURS; ++c) picture[at * COLOURS + c] = from[c * SIDE * SIDE + at];
        } else {
            std::memcpy(picture, from, PICTURE * sizeof(float));
        }
    }

    static void line(const float* picture, const float* weights, const Vector* bias, Vector* out) {
        for (int x = 0; x < OUT; x += AT_ONCE) {
            Vector sums[AT_ONCE][WIDE];
            for (int i = 0; i < AT_ONCE; ++i)
                for (int v = 0; v < WIDE; ++v) sums[i][v] = bias[v];
            for (int ky = 0; ky < KERNEL; ++ky) {
                const float* pixels = picture + ky * LINE + x * COLOURS;
                const float* own = weights + ky * ROW * WIDE * LANES;
                for (int k = 0; k < ROW; ++k) {
                    Vector weight[WIDE];
                    for (int v = 0; v < WIDE; ++v) weight[v] = load(own + (k * WIDE + v) * LANES);
#pragma GCC unroll 16
                    for (int i = 0; i < AT_ONCE; ++i)
#pragma GCC unroll 2
                        for (int v = 0; v < WIDE; ++v) sums[i][v] += weight[v] * pixels[i * COLOURS + k];
                }
            }
            for (int i = 0; i < AT_ONCE; ++i)
                for (int v = 0; v < WIDE; ++v) out[(x + i) * WIDE + v] = sums[i][v];
        }
    }

    static void forward(int64_t count, const float* inputs, const float* weights, const float* biases, float* outputs,
                        uint8_t* largest) {
        std::vector<float> laid(KERNEL * ROW * WIDE * LANES, 0.0f);  // by pixel, then by filter
        for (int f = 0; f < FILTERS; ++f)
            for (int c = 0; c < COLOURS; ++c)
                for (int k = 0; k < KERNEL * KERNEL; ++k)
                    laid[(k * COLOURS + c) * WIDE * LANES + f] = weights[(f * COLOURS + c) * KERNEL * KERNEL + k];
        std::vector<float> picture(PICTURE);
        float padded[WIDE * LANES] = {};
        std::memcpy(padded, biases, FILTERS * sizeof(float));
        Vector bias[WIDE], lines[2][OUT * WIDE];
        for (int v = 0; v < WIDE; ++v) bias[v] = load(padded + v * LANES);
        for (int64_t n = 0; n < count; ++n) {
            take(inputs + n * PICTURE, picture.data());
            for (int y = 0; y < POOLED; ++y) {
                for (int half = 0; half < 2; ++half)
                    line(picture.data() + (2 * y + half) * LINE, laid.data(), bias, lines[half]);
                for (int x = 0; x < POOLED; ++x)
                    for (int v = 0; v < WIDE; ++v) {
                        Vector best = lines[0][2 * x * WIDE + v];
                        Mask which = {};
                        for (int i = 1; i < 4; ++i) {
                            const Vector other = lines[i / 2][(2 * x + i % 2) * WIDE + v];
                            const Mask more = (other > best) | (other != other);  // not a number stays to be seen
                            best = more ? other : best;
                            which = more ? which - which + i : which;
                        }
                        const Mask cut = best <= 0.0f;
                        best = cut ? best - best : best;
                        which = cut ? which - which + CUT : which;
                        const int64_t at = n * RESULT + (y * POOLED + x) * FILTERS + v * LANES;
                        for (int f = 0; f < LANES && v * LANES + f < FILTERS; ++f) {
                            outputs[at + f] = best[f];
                            largest[at + f] = uint8_t(which[f]);
                        }
                    }
            }
        }
    }

    // What the rows from BEGIN to END of a filter gain from one picture.
    template <int BEGIN, int END>
    static void rows(const float* picture, int used, const float* gradient, const int* offset, float* gained) {
        Vector sums[END - BEGIN][PARTS] = {};
        for (int at = 0; at < used; ++at) {
            const float* pixels = picture + offset[at] + BEGIN * LINE;
#pragma GCC unroll 5
            for (int ky = 0; ky < END - BEGIN; ++ky)
#pragma GCC unroll 4
                for (int p = 0; p < PARTS; ++p) sums[ky][p] += load(pixels + ky * LINE + p * LANES) * gradient[at];
        }
        for (int ky = BEGIN; ky < END; ++ky)
            for (int p = 0; p < PARTS; ++p) {
                float* to = gained + (ky * PARTS + p) * LANES;
                store(to, load(to) + sums[ky - BEGIN][p]);
            }
    }

    static void backward(int64_t count, const float* inputs, const float* weights, const uint8_t* largest,
                         const float* gradients, float* of_weights, float* of_biases, float* of_inputs) {
        constexpr int ROWS = KERNEL * PARTS * LANES, POOLS = POOLED * POOLED;
        std::vector<float> gained(FILTERS * ROWS, 0.0f), laid(FILTERS * ROWS, 0.0f);  // a row is filled with zeros
        std::vector<float> picture(PICTURE + LANES * PARTS, 0.0f), back(FIRST ? 0 : PICTURE + LANES * PARTS);
        for (int f = 0; f < FILTERS; ++f)
            for (int c = 0; c < COLOURS; ++c)
                for (int k = 0; k < KERNEL * KERNEL; ++k)
                    laid[f * ROWS + k / KERNEL * PARTS * LANES + k % KERNEL * COLOURS + c] =
                        weights[(f * COLOURS + c) * KERNEL * KERNEL + k];
        std::vector<double> bias(FILTERS, 0.0);
        for (int64_t n = 0; n < count; ++n) {
            take(inputs + n * PICTURE, picture.data());
            std::memset(back.data(), 0, back.size() * sizeof(float));
            for (int f = 0; f < FILTERS; ++f) {
                float gradient[POOLS + 1];
                int offset[POOLS + 1], used = 0;  // those that ReLU let through
                float sum = 0.0f;
                for (int at = 0; at < POOLS; ++at) {
                    const int64_t from = n * RESULT + at * FILTERS + f;
                    const uint8_t which = largest[from];
                    const int y = at / POOLED * 2 + (which >> 1 & 1), x = at % POOLED * 2 + (which & 1);
                    gradient[used] = gradients[from];
                    offset[used] = y * LINE + x * COLOURS;
                    used += which != CUT;
                }
                for (int at = 0; at < used; ++at) sum += gradient[at];
                bias[f] += sum;
                float* own = gained.data() + f * ROWS;
                if (KERNEL * PARTS <= 12) {
                    rows<0, KERNEL>(picture.data(), used, gradient, offset, own);
                } else {  // there are 16 registers
                    rows<0, 3>(picture.data(), used, gradient, offset, own);
                    rows<3, KERNEL>(picture.data(), used, gradient, offset, own);
                }
                if (FIRST) continue;
                const float* filter = laid.data() + f * ROWS;
                for (int at = 0; at < used; ++at)
                    for (int ky = 0; ky < KERNEL; ++ky)
                        for (int p = 0; p < PARTS; ++p) {
                            float* to = back.data() + offset[at] + ky * LINE + p * LANES;
                            store(to, load(to) + load(filter + (ky * PARTS + p) * LANES) * gradient[at]);
                        }
            }
            if (!FIRST) std::memcpy(of_inputs + n * PICTURE, back.data(), PICTURE * sizeof(float));
        }
        for (int f = 0; f < FILTERS; ++f) {
            of_biases[f] = float(bias[f]);
            for (int c = 0; c < COLOURS; ++c)
                for (int k = 0; k < KERNEL * KERNEL; ++k)
                    of_weights[(f * COLOURS + c) * KERNEL * KERNEL + k] =
                        gained[f * ROWS + k / KERNEL * PARTS * LANES + k % KERNEL * COLOURS + c];
        }
    }
};

}  // namespace

#define LAYER(NAME, ...)                                                                                               \
    extern "C" void forward_##NAME(int64_t count, const float* inputs, const float* weights, const float* biases,      \
                                   float* outputs, uint8_t* largest) {                                                 \
        Layer<__VA_ARGS__>::forward(count, inputs, weights, biases, outputs, largest);                                 \
    }                                                                                                                  \
    extern "C" void backward_##NAME(int64_t count, const float* inputs, const float* weights, const uint8_t* largest,  \
                                    const float* gradients, float* of_weights, float* of_biases, float* of_inputs) {   \
        Layer<__VA_ARGS__>::backward(count, inputs, weights, largest, gradients, of_weights, of_biases, of_inputs);    \
    }

LAYER(colours, 32, 3, 6, true)
LAYER(grey, 32, 1, 6, true)
LAYER(second, 14, 6, 16, false)
