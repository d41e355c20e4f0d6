#include "common.h"
#ifdef DX_ARM
namespace dx_neon {
#define DX_NEON 1
#include "bodies.inc"
}
#endif
