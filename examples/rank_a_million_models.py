"""A million models that nobody has built: which one of about eight billion parameters decodes fastest on an H200?"""

import numpy as np

from infercast.forecast.variants import estimate_variants

layers, hidden, inter, heads, kv_heads = (
    axis.ravel()
    for axis in np.meshgrid(
        np.arange(16, 66),  # 50 depths
        np.arange(2048, 2048 + 50 * 128, 128),  # 50 widths
        np.arange(4096, 4096 + 50 * 512, 512),  # 50 widths of the feed-forward
        np.array([16, 24, 32, 40]),
        np.array([4, 8]),
    )
)
variants = estimate_variants(
    "h200-sxm", layers=layers, hidden=hidden, inter=inter, heads=heads, kv_heads=kv_heads, batch=16, context=2000
)
about_8b = np.flatnonzero(np.abs(variants.parameters / 8.03e9 - 1) < 0.01)
ranked = about_8b[np.argsort(variants.seconds[about_8b], kind="stable")]
print(f"{layers.size:,} models, {about_8b.size:,} of them of 8 billion parameters")
print("layers  hidden   inter  heads  KV heads  a step")
for index in (*ranked[:3], ranked[len(ranked) // 2], ranked[-1]):
    shape = f"{layers[index]:6}  {hidden[index]:6}  {inter[index]:6}  {heads[index]:5}  {kv_heads[index]:8}"
    print(f"{shape}  {1e3 * variants.seconds[index]:.2f} ms")
