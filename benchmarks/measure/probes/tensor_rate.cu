// Nothing but tensor core instructions: how fast `mma.sync` is on this chip, and `wgmma` where it has that.
//
// Kernels of older generations (Marlin's, FlashAttention 2's) multiply by `mma.sync` on every chip. On Hopper it reaches
// less than `wgmma`, which reads its operands from shared memory and is what kernels written for Hopper use. Operands
// stay in registers or in shared memory, so nothing else can hold the instructions back. Compiled by nvcc when first
// asked for.
#include <cuda_runtime.h>
#include <cstdint>

template <int KIND>
__global__ void __launch_bounds__(256) mma_sync_rate(const uint32_t* in, float* out, int loops) {
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = in[threadIdx.x * 8 + i];
  for (int i = 0; i < 2; ++i) b[i] = in[threadIdx.x * 8 + 4 + i];
  float d[8][4] = {};
  for (int loop = 0; loop < loops; ++loop) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (KIND == 0)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#if FP8
      else
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
    }
  }
  float sum = 0;
  for (int i = 0; i < 32; ++i) sum += d[i / 4][i % 4];
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}

#if WGMMA
__device__ uint64_t describe(const void* at) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  return ((uint64_t)(address & 0x3FFFF) >> 4) | (8ull << 16) | (16ull << 32);
}

template <int KIND>
__global__ void __launch_bounds__(256) wgmma_rate(const uint4* in, float* out, int loops) {
  __shared__ __align__(1024) uint4 tiles[2][640];
  for (int i = threadIdx.x; i < 1280; i += 256) tiles[i / 640][i % 640] = in[i];
  __syncthreads();
  const uint4* own = tiles[threadIdx.x / 128];
  uint64_t a = describe(own), b = describe(own + 128);
  float d[REGISTERS] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int loop = 0; loop < loops; ++loop) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (KIND == 2)
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {SUMS}, %128, %129, 1, 1, 1, 0, 0;"
                     : OUTPUTS : "l"(a), "l"(b));
      else
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {SUMS}, %128, %129, 1, 1, 1;"
                     : OUTPUTS : "l"(a), "l"(b));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  float sum = 0;
  for (int i = 0; i < REGISTERS; ++i) sum += d[i];
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
#endif

extern "C" int launch(int kind, int blocks, int loops, const void* in, void* out, void* stream) {
  auto s = static_cast<cudaStream_t>(stream);
  auto o = static_cast<float*>(out);
  auto words = static_cast<const uint32_t*>(in);
  if (kind == 0) mma_sync_rate<0><<<blocks, 256, 0, s>>>(words, o, loops);
  if (kind == 1) mma_sync_rate<1><<<blocks, 256, 0, s>>>(words, o, loops);
#if WGMMA
  auto wide = static_cast<const uint4*>(in);
  if (kind == 2) wgmma_rate<2><<<blocks, 256, 0, s>>>(wide, o, loops);
  if (kind == 3) wgmma_rate<3><<<blocks, 256, 0, s>>>(wide, o, loops);
#endif
  return static_cast<int>(cudaGetLastError());
}
