0.0007288576610894977  0.00046721712926946554  0.00018213210939163285 : Mass of the planets (in mstar)
15.891461327854934  86.1236970832486  93.31064802296567 : Semi-major axes
0.5292708903622507  0.2511813640640091  0.003359771988243354 : Eccentricities
51.22688271082954  31.66757194851399  81.3549176188938 : Inclinaison (deg)
1  1  1 : is Inclinaison damping?
1  1  1 : planets feel Disk ?
1  1  1 : planets feel others ?
0  0  0 : Accretion onto planets ?
1.66  1.66  1.66 : Accretion parameter
0.001  0.001  0.001 : Maximum mass of the planet
0.4  0.4  0.4 : Smoothing
1.0  1.0  1.0 : Region excluded from torque calculation
