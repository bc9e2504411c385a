// What lies where between a prefill's two kernels on Hopper.
//
// Macros: KEY_HEADS, HEADS (of values), WIDTH (taps), BF16 (of the activations; else fp16), WIDE_STATE (states in fp32, else fp16).
#define SIZE 64   // tokens of a chunk
#define D 128     // of a head
#define GROUP (HEADS / KEY_HEADS)
#define CHANNELS ((2 * KEY_HEADS + HEADS) * D)

// A tile is 64 rows of 64 fp16 numbers as the tensor cores read it: rows of 128 bytes, the 16-byte pieces of row r at piece ^ (r % 8).
// A chunk of a key head: 64 dimensions of its unit keys (tokens by dimensions), the same of its unit queries, then the other 64 of both, so
// that keys and queries are 128 rows of one operand. A chunk of a value head: its values (tokens by dimensions, in two tiles), M and P (see
// `prepare`), then 64 times e^c, and 64 times e^(c of the last token - c), in fp32.
#define TILE_BYTES 8192
#define UNIT_BYTES (4 * TILE_BYTES)
#define FACTOR_BYTES (2 * SIZE * 4)
#define HEAD_BYTES (4 * TILE_BYTES + FACTOR_BYTES)
__device__ __forceinline__ int place(int row, int piece) { return row * 128 + (piece ^ row % 8) * 16; }
