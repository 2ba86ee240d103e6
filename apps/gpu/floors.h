// What other parts compare their times with.
#pragma once

namespace kvasir::gpu_program {

int multiprocessors();

// The best rate at which this device's memory is read, measured now: 20 ms.
double read_floor_gb_s();

}  // namespace kvasir::gpu_program
