"""The differential-privacy core that every mechanism shares.

============================ =====================================================================
module                       what it holds
============================ =====================================================================
`events`                     privacy events: what a mechanism does, as the accountant sees it
`accounting`                 event → (ε, δ), and calibration: the smallest noise for a budget
`filters`                    privacy filters: adaptive composition under one budget
`clipping`                   L2 clipping in fixed point, so that sums have L2 sensitivity 1
`discrete_gaussian`          discrete Gaussian noise, and its distance to the ideal
`entropy`                    the cryptographic generator behind the noise
`sampling`                   Poisson subsampling, from the same generator
`privatise`                  the only way from clean sums to something that may leave
============================ =====================================================================
"""
