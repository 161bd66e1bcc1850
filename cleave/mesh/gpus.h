#pragma once

/// Throws Error(kUsage) when this host cannot compute on GPUs, Error(kShape) when it has fewer than
/// `count` of them, one for each rank. The front end finds it in libcleave by this name, before it
/// starts ranks as processes.
extern "C" void cleave_require_gpus(int count);
