// LeNet-5 as one operation on one core: forwards, and backwards for the gradients of its parameters.
//
// A block of pictures goes through all layers before the next: what they make of it stays in the second cache. The last
// block is filled up with black pictures, whose outputs nobody sees and which have no gradients.

#include <memory>

#include "layers.h"

namespace {

constexpr int PIXELS = 32, FIRST_FILTERS = 6, SECOND_FILTERS = 16, FIRST_HIDDEN = 120, SECOND_HIDDEN = 84, CLASSES = 10;
constexpr int HIDDEN = FIRST_HIDDEN + SECOND_HIDDEN;  // units that dropout may leave out

template <int COLOURS>
using First = Convolution<PIXELS, COLOURS, FIRST_FILTERS, true>;
using Second = Convolution<First<1>::POOLED, FIRST_FILTERS, SECOND_FILTERS, false>;
using Third = Linear<Second::RESULT, FIRST_HIDDEN>;
using Fourth = Linear<FIRST_HIDDEN, SECOND_HIDDEN>;
using Fifth = Linear<SECOND_HIDDEN, CLASSES>;

// The parameters, or their gradients, in the order of the network.
template <typename Number>
struct Parameters {
    Number *first, *first_bias, *second, *second_bias, *third, *third_bias, *fourth, *fourth_bias, *fifth, *fifth_bias;
};

// What backwards needs of a block: the outputs of layers, and which of four was the largest.
struct Block {
    Vector first[First<1>::RESULT], second[Second::RESULT], third[FIRST_HIDDEN], fourth[SECOND_HIDDEN];
    Bytes largest_of_first[First<1>::RESULT], largest_of_second[Second::RESULT];
};

// ReLU, and dropout where there are masks.
inline void activate(int units, Vector* values, const Vector* masks) {
    for (int i = 0; i < units; ++i) {
        values[i] = values[i] <= 0.0f ? Vector{} : values[i];
        if (masks) values[i] *= masks[i];
    }
}

// Units that ReLU cut or dropout left out are zero; `scale` is what dropout multiplies the others by. Adds to `sums`.
inline void backward_activation(int units, const Vector* values, float scale, Vector* gradients, Vector* sums) {
    for (int i = 0; i < units; ++i) {
        gradients[i] = values[i] <= 0.0f ? Vector{} : gradients[i] * scale;
        sums[i] += gradients[i];
    }
}

inline void sum_lanes(int units, const Vector* sums, float* to) {
    for (int i = 0; i < units; ++i) {
        to[i] = 0.0f;
        for (int n = 0; n < LANES; ++n) to[i] += sums[i][n];
    }
}

inline void clear(float* numbers, int count) { std::memset(numbers, 0, count * sizeof(float)); }

// For pictures of COLOURS; if they are smaller than PIXELS, they get a border of zeros.
template <int COLOURS>
struct Network {
    using First = ::First<COLOURS>;

    struct alignas(64) Forward {
        Vector pictures[First::PICTURE], masks[HIDDEN], results[CLASSES];
        float by_picture[LANES][vectors(CLASSES) * LANES];
    };

    static void forward(int64_t count, int border, const float* pictures, const Parameters<const float>& own,
                        const float* masks, bool keeps, Block* blocks, float* outputs) {
        const std::unique_ptr<Forward> room(new Forward);
        const int side = PIXELS - 2 * border, size = COLOURS * side * side;
        const Vector* first_masks = masks ? room->masks : nullptr;
        const Vector* second_masks = masks ? room->masks + FIRST_HIDDEN : nullptr;
        if (border) std::memset(room->pictures, 0, sizeof(room->pictures));
        for (int64_t begin = 0; begin < count; begin += LANES) {
            const int here = count - begin < LANES ? int(count - begin) : LANES;
            Block& block = blocks[keeps ? begin / LANES : 0];
            for (int row = 0; row < COLOURS * side; ++row) {
                const int to = row / side * First::COLOUR + (row % side + border) * First::BELOW + border;
                gather(here, pictures + begin * size + row * side, size, side, room->pictures + to);
            }
            if (masks) gather(here, masks + begin * HIDDEN, HIDDEN, HIDDEN, room->masks);
            First::forward(room->pictures, own.first, own.first_bias, block.first, block.largest_of_first);
            Second::forward(block.first, own.second, own.second_bias, block.second, block.largest_of_second);
            Third::forward(block.second, own.third, own.third_bias, block.third);
            activate(FIRST_HIDDEN, block.third, first_masks);
            Fourth::forward(block.third, own.fourth, own.fourth_bias, block.fourth);
            activate(SECOND_HIDDEN, block.fourth, second_masks);
            Fifth::forward(block.fourth, own.fifth, own.fifth_bias, room->results);
            scatter(room->results, CLASSES, room->by_picture[0], vectors(CLASSES) * LANES);
            for (int n = 0; n < here; ++n)
                std::memcpy(outputs + (begin + n) * CLASSES, room->by_picture[n], CLASSES * sizeof(float));
        }
    }

    struct alignas(64) Backward {
        static constexpr int INPUTS = vectors(Second::PADDED) * LANES;
        Vector of_second[Second::RESULT], of_third[FIRST_HIDDEN], of_fourth[SECOND_HIDDEN], of_fifth[CLASSES];
        float by_picture[LANES][Third::PADDED], inputs[LANES][INPUTS];
        float back[Second::PADDED], picture[First::PADDED] = {};
        float laid[SECOND_FILTERS * Second::LAID] = {};
        float first_gained[FIRST_FILTERS * First::FILTER] = {}, second_gained[SECOND_FILTERS * Second::FILTER] = {};
        Vector sums[HIDDEN + CLASSES] = {};
    };

    static void backward(int64_t count, int border, const float* pictures, const Parameters<const float>& own,
                         float scale, const Block* blocks, const float* gradients, const Parameters<float>& of) {
        const std::unique_ptr<Backward> room(new Backward);
        clear(of.first_bias, FIRST_FILTERS);
        clear(of.second_bias, SECOND_FILTERS);
        clear(of.third, Third::WEIGHTS);
        clear(of.fourth, Fourth::WEIGHTS);
        clear(of.fifth, Fifth::WEIGHTS);
        Second::lay(own.second, room->laid);
        for (int64_t begin = 0; begin < count; begin += LANES) {
            const int here = count - begin < LANES ? int(count - begin) : LANES;
            connected(here, own, scale, blocks[begin / LANES], gradients + begin * CLASSES, of, *room);
            convolutions(here, border, pictures, begin, blocks[begin / LANES], of, *room);
        }
        sum_lanes(FIRST_HIDDEN, room->sums, of.third_bias);
        sum_lanes(SECOND_HIDDEN, room->sums + FIRST_HIDDEN, of.fourth_bias);
        sum_lanes(CLASSES, room->sums + HIDDEN, of.fifth_bias);
        First::collect(room->first_gained, of.first);
        Second::collect(room->second_gained, of.second);
    }

    // The fully connected layers; leaves the gradients of the second convolution's outputs by picture.
    static void connected(int pictures, const Parameters<const float>& own, float scale, const Block& block,
                          const float* gradients, const Parameters<float>& of, Backward& room) {
        float* rows = room.by_picture[0];
        gather(pictures, gradients, CLASSES, CLASSES, room.of_fifth);
        for (int i = 0; i < CLASSES; ++i) room.sums[HIDDEN + i] += room.of_fifth[i];
        scatter(block.fourth, SECOND_HIDDEN, rows, Fifth::PADDED);
        Fifth::backward_to_weights(room.of_fifth, rows, of.fifth);
        Fifth::backward_to_inputs(room.of_fifth, own.fifth, room.of_fourth);
        backward_activation(SECOND_HIDDEN, block.fourth, scale, room.of_fourth, room.sums + FIRST_HIDDEN);
        scatter(block.third, FIRST_HIDDEN, rows, Fourth::PADDED);
        Fourth::backward_to_weights(room.of_fourth, rows, of.fourth);
        Fourth::backward_to_inputs(room.of_fourth, own.fourth, room.of_third);
        backward_activation(FIRST_HIDDEN, block.third, scale, room.of_third, room.sums);
        scatter(block.second, Second::RESULT, rows, Third::PADDED);
        Third::backward_to_weights(room.of_third, rows, of.third);
        Third::backward_to_inputs(room.of_third, own.third, room.of_second);
        scatter(room.of_second, Second::RESULT, rows, Third::PADDED);
    }

    static void convolutions(int here, int border, const float* pictures, int64_t begin, const Block& block,
                             const Parameters<float>& of, Backward& room) {
        const int side = PIXELS - 2 * border, size = COLOURS * side * side;
        const uint8_t* first_largest = reinterpret_cast<const uint8_t*>(block.largest_of_first);
        const uint8_t* second_largest = reinterpret_cast<const uint8_t*>(block.largest_of_second);
        scatter(block.first, Second::PICTURE, room.inputs[0], Backward::INPUTS);
        for (int n = 0; n < here; ++n) {
            const float *gradients = room.by_picture[n], *inputs = room.inputs[n];
            Second::backward_to_weights(inputs, gradients, second_largest + n, room.second_gained, of.second_bias);
            Second::backward_to_picture(gradients, second_largest + n, room.laid, room.back);
            take(side, border, pictures + (begin + n) * size, room.picture);
            First::backward_to_weights(room.picture, room.back, first_largest + n, room.first_gained, of.first_bias);
        }
    }

    // A picture becomes channels last, within its border.
    static void take(int side, int border, const float* from, float* picture) {
        for (int y = 0; y < side; ++y)
            for (int x = 0; x < side; ++x)
                for (int c = 0; c < COLOURS; ++c)
                    picture[((y + border) * PIXELS + x + border) * COLOURS + c] = from[(c * side + y) * side + x];
    }
};

}  // namespace

// Bytes that backwards needs.
extern "C" int64_t room(int64_t pictures) { return (pictures + LANES - 1) / LANES * sizeof(Block); }

// What dropout multiplies each unit of each picture by: 0 with a probability of `share`, otherwise 1 / (1 - share).
// Every unit has 32 bits of SplitMix64 (Steele et al., Fast Splittable Pseudorandom Number Generators, 2014).
extern "C" void draw(int64_t pictures, uint64_t seed, double share, float* masks) {
    const uint32_t below = uint32_t(share * 4294967296.0);
    const float kept = float(1.0 / (1.0 - share));
    for (int64_t at = 0; at < pictures * HIDDEN; at += 2) {
        uint64_t bits = seed += 0x9e3779b97f4a7c15u;
        bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
        bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
        bits ^= bits >> 31;
        masks[at] = uint32_t(bits) < below ? 0.0f : kept;
        masks[at + 1] = uint32_t(bits >> 32) < below ? 0.0f : kept;
    }
}

// `masks` may be null. With `keeps`, there is room for all pictures, as backwards needs it; otherwise for one block.
extern "C" void forward(int64_t colours, int64_t count, int64_t border, const float* pictures, const void* own,
                        const float* masks, int64_t keeps, void* blocks, float* outputs) {
    const auto run = colours == 1 ? Network<1>::forward : Network<3>::forward;
    run(count, int(border), pictures, *static_cast<const Parameters<const float>*>(own), masks, keeps,
        static_cast<Block*>(blocks), outputs);
}

extern "C" void backward(int64_t colours, int64_t count, int64_t border, const float* pictures, const void* own,
                         double scale, const void* blocks, const float* gradients, const void* of) {
    const auto run = colours == 1 ? Network<1>::backward : Network<3>::backward;
    run(count, int(border), pictures, *static_cast<const Parameters<const float>*>(own), float(scale),
        static_cast<const Block*>(blocks), gradients, *static_cast<const Parameters<float>*>(of));
}
