#pragma once

/// Throws Error(kUsage) when this host cannot compute on GPUs, Error(kShape) when it has fewer than
/// `count`, one for each rank. The command-line program looks this symbol up in libcleave before it
/// starts ranks as processes.
extern "C" void cleave_require_gpus(int count);
